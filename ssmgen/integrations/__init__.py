"""ssmgen's kernels inside other libraries' models; one module a library, and none of them is imported here."""
