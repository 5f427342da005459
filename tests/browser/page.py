"""A notebook in a browser's page, and the labs in it, as a reader with a keyboard meets them."""

import time

RUN_S = 180
PICTURE_S = 20

IDLE = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'
PANEL = "window.jupyterapp.shell.currentWidget"
VIEW = "application/vnd.jupyter.widget-view+json"
# By kind of control: what holds it, and what in it takes the focus.
KINDS = {
    "play": (".widget-play", "button >> nth=0"),
    "slider": (".widget-slider", ".noUi-handle"),
    "dropdown": (".widget-dropdown", "select"),
    "toggle": (".widget-toggle-buttons", "button:not(.mod-active) >> nth=0"),
}

# The indicator says "idle" also before there is a kernel, and running then asks for one.
KERNEL = f"""() => {{
    const kernel = {PANEL}.sessionContext.session?.kernel;
    return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
}}"""
# A new page asks the kernel for its widgets; one that has not imported ipywidgets yet complains of it.
PREPARE = f"""() => {PANEL}.sessionContext.session.kernel
    .requestExecute({{code: 'import ipywidgets', silent: true, store_history: false}}).done"""
# Errors of the kernel reach the page as messages, also those of callbacks, which no cell shows.
LISTEN = f"""() => {{
    window.kernelErrors = [];
    {PANEL}.sessionContext.iopubMessage.connect((_, message) => {{
        const kind = message.header.msg_type, content = message.content;
        if (kind === 'error')
            window.kernelErrors.push(`${{content.ename}}: ${{content.evalue}}`);
        if (kind === 'stream' && content.name === 'stderr')
            window.kernelErrors.push(content.text);
    }});
}}"""
# The kept outputs look like those of a run, so its end is told by the command itself.
RUN = """() => {
    window.hasRun = false;
    window.jupyterapp.commands.execute('notebook:run-all-cells')
        .finally(() => { window.hasRun = true; });
}"""
OUTPUTS = f"""() => {{
    const cells = {PANEL}.content.model.cells, found = [];
    for (let i = 0; i < cells.length; i++)
        if (cells.get(i).type === 'code')
            found.push([i, cells.get(i).executionCount, cells.get(i).outputs.toJSON()]);
    return found;
}}"""
ACTIVATE = f"""async index => {{
    const notebook = {PANEL}.content;
    notebook.activeCellIndex = index;
    await notebook.scrollToItem(index, 'start');
}}"""
# Another picture, or none because an error took its place.
REDRAWN = """([image, before]) =>
    image.style.display === 'none'
    || (image.src !== before && image.complete && image.naturalWidth > 0)"""
# Nothing that is on its way can be taken for the next control's picture. The kernel takes one thing
# after the other: what it is asked now it answers after the last message, and, asked again, after the
# one that the page kept back until then.
ANSWERED = f"""async () => {{
    const kernel = {PANEL}.sessionContext.session.kernel;
    for (let n = 0; n < 2; n++)
        await kernel.requestExecute({{code: '', silent: true, store_history: false}}).done;
}}"""
COMPLETE = "image => image.complete && image.naturalWidth > 0"
# Sizes follow the window's one frame later.
FRAMES = """() => new Promise(resolve =>
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(resolve, 50))))"""
SIZES = f"""lab => {{
    const image = lab.querySelector('img.widget-image');
    const notebook = {PANEL}.content.node, outer = notebook.querySelector('.jp-WindowedPanel-outer');
    return {{lab: lab.getBoundingClientRect().height, room: (outer || notebook).clientHeight,
             shown: image.getBoundingClientRect().width, drawn: image.naturalWidth,
             shape: image.getBoundingClientRect().height / image.getBoundingClientRect().width,
             drawn_shape: image.naturalHeight / image.naturalWidth}};
}}"""
TITLE = """(control, lab) => {
    for (let e = control; e !== null && lab.contains(e); e = e.parentElement)
        if (e.title) return e.title;
    const beside = [...control.querySelectorAll('.widget-label, .widget-label [title]')];
    return beside.map(e => e.title).join('');
}"""


class NotebookPage:
    """A notebook that is open in JupyterLab."""

    def __init__(self, browser, server, name, pictures, *, dots=1):
        self.server, self.name, self.pictures = server, name, pictures
        self._errors = []
        self._log_start = server.log.stat().st_size
        self._context = browser.new_context(
            viewport={"width": 1280, "height": 1000}, device_scale_factor=dots
        )
        self._context.set_default_timeout(1e3 * PICTURE_S)
        self._context.route(lambda url: not url.startswith(server.url), self._refuse)
        self.page = self._context.new_page()
        self.page.on("pageerror", lambda error: self._errors.append(f"page: {error}"))
        self.page.on("console", self._listen)

    def _listen(self, message):
        if message.type == "error":
            self._errors.append(f"console: {message.text}")

    def _refuse(self, route):
        if route.request.url.startswith(("data:", "blob:")):
            route.continue_()
        else:
            self._errors.append(f"asks outside: {route.request.url}")
            route.abort()

    def open(self):
        """Open the notebook as it is on the disk, and wait until a kernel is ready."""
        page = self.page
        page.goto(f"{self.server.url}lab/tree/work/{self.name}?token={self.server.token}&reset")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=1e3 * RUN_S)
        page.wait_for_function("window.jupyterapp.commands.isEnabled('notebook:run-all-cells')")
        page.wait_for_function(KERNEL, timeout=1e3 * RUN_S)
        page.wait_for_selector(IDLE, timeout=1e3 * RUN_S)

    def run(self):
        """Open the notebook, run all its cells, and wait until nothing is left to do."""
        start, page = time.perf_counter(), self.page
        self.open()
        page.evaluate(PREPARE)
        page.wait_for_selector(IDLE, timeout=1e3 * RUN_S)
        page.evaluate(LISTEN)
        page.evaluate(RUN)
        page.wait_for_function("window.hasRun", timeout=1e3 * RUN_S, polling=100)
        page.wait_for_selector(IDLE, timeout=1e3 * RUN_S)
        self.run_s = time.perf_counter() - start

    def save(self):
        """Save the notebook, as Ctrl+S does."""
        self.page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")

    def resize(self, width, height):
        """Give the window another size."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.evaluate(FRAMES)

    def errors(self):
        """Return all that went wrong until now, in the page, the kernel and the server."""
        found = [*self._errors, *(f"kernel: {e}" for e in self.page.evaluate("window.kernelErrors"))]
        for index, _, outputs in self.page.evaluate(OUTPUTS):
            for output in outputs:
                if output["output_type"] == "error":
                    found.append(f"cell {index}: {output['ename']}: {output['evalue']}")
        with self.server.log.open("rb") as log:
            log.seek(self._log_start)
            messages = log.read().decode(errors="replace")
        if "Traceback (most recent call last)" in messages:
            found.append(f"server: {messages[-2000:]}")
        return found

    def labs(self):
        """Yield the labs, each brought into view."""
        for index, _, outputs in self.page.evaluate(OUTPUTS):
            if not any(VIEW in output.get("data", {}) for output in outputs):
                continue
            self.page.evaluate(ACTIVATE, index)
            found = self.page.locator(".jp-Notebook .jp-Cell.jp-mod-active .flashlib-lab")
            found.first.locator("img.widget-image").wait_for(state="visible")
            for number in range(found.count()):
                yield Lab(self, f"cell{index}-{number}", found.nth(number))

    def end_kernel(self):
        for session in self.server.request("api/sessions"):
            self.server.request(f"api/sessions/{session['id']}", method="DELETE")

    def close(self):
        """Keep a last picture, and end the kernel and the page."""
        self.page.screenshot(path=self.pictures / "end.png")
        self.end_kernel()
        self._context.close()


class Lab:
    """Controls above a picture."""

    def __init__(self, notebook, name, root):
        self.notebook, self.name, self.root = notebook, name, root
        self.image = root.locator("img.widget-image")
        self.played = False

    def sizes(self):
        """Return pixels: of the lab and its room (heights), of the picture (shown, drawn: widths)."""
        return self.root.evaluate(SIZES)

    def controls(self):
        """Return (kind, locator) of every control that shows."""
        found = [(kind, one) for kind, (holder, _) in KINDS.items()
                 for one in self.root.locator(holder).all()]
        return [(kind, control) for kind, control in found if control.is_visible()]

    def strangers(self):
        """Return what takes input and is no control of a known kind: nothing would move it."""
        known = ", ".join(holder for holder, _ in KINDS.values())
        return self.root.evaluate(
            "(lab, known) => [...lab.querySelectorAll('input, select, textarea, button')]"
            ".filter(e => !e.closest(known)).map(e => e.outerHTML)", known
        )

    def label(self, kind, control):
        """Return the locator of the text that stands beside a control."""
        beside = control.locator("xpath=..") if kind == "play" else control
        return beside.locator("label.widget-label").first

    def tooltip(self, control):
        return control.evaluate(TITLE, self.root.element_handle())

    def shows_a_choice(self, kind, control):
        if kind == "dropdown":
            return control.locator("select").evaluate("e => e.selectedIndex >= 0")
        return kind != "toggle" or control.locator("button.mod-active").count() == 1

    def move(self, kind, control, picture_s=PICTURE_S):
        """Focus a control, press the key that moves it, and return the seconds to another picture.

        A slider that has played may stand a step behind its picture: then it may move twice.

        Raises:
            AssertionError: no other picture came, or a sentence about an error.
        """
        image, name = self.image.element_handle(), self.label(kind, control).inner_text()
        before, start = image.get_attribute("src"), time.perf_counter()
        for last in (False, True):
            self._press(kind, control)
            try:
                self.notebook.page.wait_for_function(
                    REDRAWN, arg=[image, before], timeout=1e3 * picture_s
                )
                break
            except Exception as error:
                if last or kind != "slider" or not self.played:
                    raise AssertionError(f"{name} ({kind}): no other picture came: {error}") from None
        seconds = time.perf_counter() - start
        if kind == "play":
            self._stop(control)
            self.played = True
        self.notebook.page.evaluate(ANSWERED)
        self.notebook.page.evaluate(FRAMES)
        if image.is_visible():                              # else an error took its place
            self.notebook.page.wait_for_function(COMPLETE, arg=image)
        self.notebook.page.wait_for_function(KERNEL)
        assert not self.alerts(), f"{name} ({kind}): {self.alerts()}"
        return seconds

    def _press(self, kind, control):
        """Move a control by the keyboard."""
        focus = control.locator(KINDS[kind][1]).element_handle()
        focus.focus()
        if kind == "slider":
            now, most = (float(focus.get_attribute(f"aria-value{a}")) for a in ("now", "max"))
            focus.press("ArrowRight" if now < most else "ArrowLeft")
        elif kind == "dropdown":
            self._choose(focus)
        else:
            focus.press("Enter")

    def _stop(self, control):
        """Pause what plays, unless it has come to its end."""
        if control.locator(".fa-pause").count():
            control.locator(KINDS["play"][1]).press("Enter")
        control.locator(".fa-pause").wait_for(state="detached")

    def _choose(self, select):
        """Take the next option of a list, or the one before the last.

        JupyterLab keeps the arrow keys from a closed list, so it is opened first. An open list may
        miss a key while it is being drawn; then we do as a reader does, and try again.
        """
        at, count = select.evaluate("e => [e.selectedIndex, e.length]")
        for _ in range(20):
            if select.evaluate("e => e.selectedIndex") != at:
                return
            if select.evaluate("e => e.matches(':open')"):
                select.press("ArrowDown" if at < count - 1 else "ArrowUp")
                select.press("Enter")
            else:
                select.press("Space")
            self.notebook.page.wait_for_timeout(100)

    def alerts(self):
        return self.root.locator("[role=alert]").all_inner_texts()

    def alt(self):
        """Return what a screen reader says in place of the picture."""
        return " ".join(self.root.locator(".sr-only").all_inner_texts()).strip()

    def keep_picture(self, moment):
        self.root.screenshot(path=self.notebook.pictures / f"{self.name}-{moment}.png")
