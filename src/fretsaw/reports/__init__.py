"""Tables, figures and the page of a run, from finished tables."""
