"""Recording a trace from PyTorch training: `session` is the entry point, `recorder` has the hooks. Needs torch."""
