"""One module for each experiment: `async def run(lab) -> list[Row]`, and `add_options(parser)` where it has options."""
