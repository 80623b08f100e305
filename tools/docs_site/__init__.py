"""The documentation as a site, and the checks of its links (`make docs`).

Pages are written for GitHub's Markdown, so that they read well there, too. `hooks` turns them into what MkDocs reads,
`links` looks at the pages as they are written, `built` at the site that came of them.
"""
