"""Web pages without a framework: a page is one document, with the style and scripts that all pages share."""
