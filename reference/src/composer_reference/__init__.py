"""The reference run files as data of a package; it registers no component."""
