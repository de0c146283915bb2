"""Reports on a run, for people: scores, the doctor, figures, the page."""
