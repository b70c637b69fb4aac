"""The seven findings: what was claimed, how runs of them are made and read, and the page that they become."""
