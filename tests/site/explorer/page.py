"""What tests do with an explorer of the demo, and what they read there."""


def put(page, kind, **state):
    page.locator(f"[data-explorer={kind}]").evaluate("(e, state) => e.explorer.set(state)", state)


def words(page, kind, part=".fx-head"):
    return " ".join(page.locator(f"[data-explorer={kind}] {part}").first.inner_text().split())
