"""The digits data set, which comes with the package."""
