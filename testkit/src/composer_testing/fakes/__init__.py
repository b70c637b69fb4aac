"""Public fakes: scripted sampler, simulated trainer, in-memory sandbox, fake clock; registered as plugin `fakes`."""
