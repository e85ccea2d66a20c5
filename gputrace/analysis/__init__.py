"""What a trace says, in figures: spans, steps, GPUs, ranks; and how two sets of traces differ.

`places` names the rows, `spans` gathers durations, `statistics` sums them up, `gpu` finds what devices did, `host` what
the host did meanwhile, `steps` and `ranks` group them, and `summary` has it all;
`comparison` tells what changed between runs, and `gate` whether that is too much. It reads no file and prints nothing.
"""
