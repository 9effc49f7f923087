"""Server-rendered pages: templates, style sheet, problem pages and the API's own documentation."""
