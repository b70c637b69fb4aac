"""An executor of a bounded number of episodes. See the README beside this package."""
