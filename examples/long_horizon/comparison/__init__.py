"""The arms, how their runs are read, and the page that they become; long_horizon.py beside this runs it all."""
