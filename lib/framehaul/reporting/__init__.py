"""Tables, figures and pages, and the execution of notebooks."""
