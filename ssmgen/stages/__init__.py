"""The stages, one module each, in data-flow order."""

from ssmgen.stages import combine, cumsum, output, packed_output, state

STAGES = {stage.name: stage for stage in (cumsum.STAGE, state.STAGE, combine.STAGE, output.STAGE, packed_output.STAGE)}
