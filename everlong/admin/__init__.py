"""Admin: overviews, previews and approvals for operators, and the web server that shows them."""
