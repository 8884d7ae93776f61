"""What a checker has to know of an operator, one module an operator; `base` says what that is."""
