"""Recording a trace from PyTorch training: `session` is the way in, `recorder` what its hooks keep. Needs torch."""
