"""REINFORCE with a leave-one-out baseline. See the README beside this package."""
