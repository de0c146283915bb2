"""The figures and tables of the paper: trained where they are missing, scored and drawn."""
