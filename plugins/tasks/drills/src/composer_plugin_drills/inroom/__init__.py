"""Programs that run inside a sandbox, as files of the workspace or of the grading room; built-in modules only."""
