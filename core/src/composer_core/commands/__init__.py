"""One file per command of `composer-run`; each is imported when it is called."""
