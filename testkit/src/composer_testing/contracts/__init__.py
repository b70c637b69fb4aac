"""One contract suite per kind; subclass it in your tests and override `build`."""
