"""What a reader sees: tables, figures, pages, and the execution of notebooks."""
