"""What tests do with an explorer of the demo, and what they read there."""


def put(page, kind, **state):
    page.locator(f"[data-explorer={kind}]").evaluate("(e, state) => e.explorer.set(state)", state)


def words(page, kind, part=".fx-head"):
    return " ".join(page.locator(f"[data-explorer={kind}] {part}").first.inner_text().split())


# Each event gets a frame of its own, so that style, layout and paint are counted with it.
MOVE = """async (slider, times) => { for (let k = 0; k < times; k++) {
    slider.value = (+slider.value + 1) % (+slider.max + 1);
    slider.dispatchEvent(new Event('input', {bubbles: true}));
    await new Promise(done => requestAnimationFrame(() => setTimeout(done, 0))); } }"""
LOOP = "() => { let s = 0; for (let i = 0; i < 2e7; i++) s = (s * 31 + i) % 1000003; return s }"
# An event against twenty million steps of the same page, for which a slow machine takes longer, too: on
# one where they took 110 ms, events took up to 20.
MOST = 0.3


def least_busy(session, work, times=1):
    """Return the milliseconds of the main thread that work takes: what else runs there only adds."""
    def busy():
        metrics = session.send("Performance.getMetrics")["metrics"]
        return {m["name"]: m["value"] for m in metrics}["TaskDuration"]

    batches = []
    for _ in range(3):
        start = busy()
        work()
        batches.append(1e3 * (busy() - start) / times)
    return min(batches)
