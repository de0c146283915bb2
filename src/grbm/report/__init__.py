"""What is known of a run, for people: scores, the doctor, figures, the page."""
