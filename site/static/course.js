// What a page of the course does by itself: progress, predictions, the glossary's tips, moving pictures.
(() => {
  "use strict";
  const root = document.documentElement.dataset.content_root;
  // A message in the page's language, {name} standing for a field's value. A page in another language sets
  // COURSE_WORDS = {English: its own} before this script (i18n/zh/words.json); what is not there stays English.
  const say = (message, fields = {}) => (window.COURSE_WORDS?.[message] ?? message)
    .replace(/\{(\w+)\}/g, (_, name) => fields[name]);
  window.courseWord = say;                                  // search.js speaks it, too
  const store = {
    get(key) { try { return localStorage.getItem("course:" + key); } catch { return null; } },
    set(key, value) {
      try {
        if (value === null) localStorage.removeItem("course:" + key);
        else localStorage.setItem("course:" + key, value);
      } catch { /* a browser may refuse; the page still reads */ }
    },
  };
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, attributes = {}, text = "") => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.textContent = text;
    return node;
  };

  // The sidebar is longer than most windows: it begins where the reader is.
  function whereabouts() {
    const bar = document.querySelector(".sidebar-scroll");
    const here = bar?.querySelector(".current-page");
    if (here) bar.scrollTo({ top: here.offsetTop - bar.offsetTop - bar.clientHeight / 2, behavior: "instant" });
  }

  // Which chapters have been read: a tick in the sidebar and on the front page.
  function ticks() {
    for (const link of all(".sidebar-tree a.reference, ul.chapters li")) {
      const page = link.dataset.page || (link.getAttribute("href") || "").replace(/\.html.*$/, "");
      link.toggleAttribute("data-done", Boolean(store.get("read:" + page)));
    }
    const own = document.querySelector(".facts");
    const current = document.querySelector(".sidebar-tree a.current[href='#']");
    if (own && current) current.toggleAttribute("data-done", Boolean(store.get("read:" + own.dataset.page)));
  }
  function finished() {
    const facts = document.querySelector(".facts");
    const article = document.querySelector("article");
    if (!facts || !article) return;
    const key = "read:" + facts.dataset.page;
    const box = make("div", { class: "finished" });
    const button = make("button", { type: "button" });
    const show = () => {
      const done = Boolean(store.get(key));
      button.setAttribute("aria-pressed", String(done));
      button.textContent = done ? say("✓ You have read this chapter") : say("Mark this chapter as read");
      ticks();
    };
    button.addEventListener("click", () => { store.set(key, store.get(key) ? null : "1"); show(); });
    box.append(button);
    article.append(box);
    show();
  }

  // A prediction: the guess is kept in this browser, and compared when it is asked for.
  function parse(text) {
    const units = { k: 1e3, K: 1e3, M: 1e6, G: 1e9, T: 1e12 };
    const found = text.trim().replace(/[,\s_]/g, "").match(/^([-+]?[\d.]+(?:e[-+]?\d+)?)([kKMGT]?)(i?)B?$/i);
    if (!found) return NaN;
    const step = found[3] ? { k: 2 ** 10, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30, T: 2 ** 40 } : units;
    return parseFloat(found[1]) * (found[2] ? step[found[2]] : 1);
  }
  function verdict(input) {
    const answer = parseFloat(input.dataset.answer);
    const guess = parse(input.value);
    const told = answer.toLocaleString("en", { maximumSignificantDigits: 12 });
    if (!input.value.trim()) return "";
    if (Number.isNaN(guess)) return say("a number, please: 1500, 1.5e3 or 1.5 k");
    const ratio = guess / answer;
    if (ratio === 1) return say("it was {answer}: yours is right", { answer: told });
    if (Math.abs(ratio - 1) < 0.005) return say("it was {answer}: yours is right, to rounding", { answer: told });
    if (ratio >= 1000 || (ratio > 0 && ratio < 0.001)) {      // a number of many zeros is said in words
      const times = Math.max(ratio, 1 / ratio).toLocaleString(document.documentElement.lang,
        { notation: "compact", compactDisplay: "long", maximumSignificantDigits: 2 });
      return ratio > 1 ? say("it was {answer}: yours is about {times} times too large", { answer: told, times })
        : say("it was {answer}: yours is about {times} times too small", { answer: told, times });
    }
    return say("it was {answer}: yours is {ratio} times that", { answer: told, ratio: ratio.toPrecision(3) });
  }
  // The next cell has the answer, and what is said of it after it: both are covered until there is a guess, the fold is opened, or patience ends.
  function cover(form) {
    const key = "seen:" + form.dataset.guess;
    let cell = form.nextElementSibling;
    while (cell && !cell.matches(".cell")) cell = cell.nextElementSibling;
    if (!cell || store.get(key)) return () => {};
    const note = make("p", { class: "cover" }, say("The answer stands here."));
    const button = make("button", { type: "button" }, say("Show me anyway"));
    const told = [];
    for (let next = cell.nextElementSibling; next?.matches("p"); next = next.nextElementSibling) {
      if (next.firstChild?.nodeName === "STRONG") break;    // Predict, Try
      told.push(next);
    }
    if (told.length > 1 && told.at(-1).nextElementSibling?.matches(".cell,ul,ol,.math")) told.pop();   // leads on
    const open = () => {
      cell.classList.remove("covered");
      for (const part of told) part.classList.remove("veiled");
      note.remove();
      store.set(key, "1");
    };
    button.onclick = () => { open(); cell.querySelector("pre")?.focus({ preventScroll: true }); };
    note.append(button);
    cell.prepend(note);
    cell.classList.add("covered");
    for (const part of told) part.classList.add("veiled");
    return open;
  }
  function guesses() {
    for (const form of all("form.guess")) {
      const inputs = all("input", form);
      const open = cover(form);
      const fold = form.nextElementSibling?.closest("details");
      fold?.addEventListener("toggle", open);
      const compare = () => inputs.forEach((input) => {
        if (input.dataset.answer) input.parentElement.querySelector("output").textContent = verdict(input);
      });
      inputs.forEach((input, n) => {
        const key = `guess:${form.dataset.guess}:${n}`;
        input.value = store.get(key) || "";
        input.addEventListener("input", () => { store.set(key, input.value || null); inputs[0].setCustomValidity(""); });
      });
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        if (!inputs.some((input) => input.value.trim())) {
          inputs[0].setCustomValidity(say("A guess first, or open the answer below."));
          inputs[0].reportValidity();
          return;
        }
        compare();
        open();
        if (fold) fold.open = true;
      });
    }
  }

  // The glossary: what a dotted word means, on hover and on focus; on a touch screen the first tap.
  function tips() {
    const tip = make("div", { id: "tip", role: "tooltip", hidden: "" });
    document.body.append(tip);
    let shown = null;
    const hide = () => { tip.hidden = true; shown?.removeAttribute("aria-describedby"); shown = null; };
    const show = (link) => {
      tip.textContent = link.dataset.tip;
      tip.hidden = false;
      link.setAttribute("aria-describedby", "tip");
      const place = link.getBoundingClientRect();
      const left = Math.max(8, Math.min(place.left, document.documentElement.clientWidth - tip.offsetWidth - 8));
      const above = place.top > tip.offsetHeight + 12;
      tip.style.left = `${left + scrollX}px`;
      tip.style.top = `${scrollY + (above ? place.top - tip.offsetHeight - 6 : place.bottom + 6)}px`;
      shown = link;
    };
    for (const link of all("a.term")) {
      link.addEventListener("mouseenter", () => show(link));
      link.addEventListener("focus", () => show(link));
      link.addEventListener("mouseleave", hide);
      link.addEventListener("blur", hide);
      let touched = false;
      link.addEventListener("touchend", () => { touched = shown !== link; });
      link.addEventListener("click", (event) => {
        if (touched) { event.preventDefault(); show(link); }
        touched = false;
      });
    }
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  }

  // Moving pictures stop when they are told to, and do not start where motion is unwanted.
  function films() {
    for (const picture of all("img[data-still]")) {
      const moving = picture.getAttribute("src");
      const box = make("div", { class: "film-box" });
      picture.replaceWith(box);
      const button = make("button", { type: "button", class: "film-stop" });
      const set = (play) => {
        picture.src = play ? moving : picture.dataset.still;
        button.textContent = play ? say("Stop") : say("Play");
        button.setAttribute("aria-label", play ? say("Stop the moving picture") : say("Play the moving picture"));
        button.onclick = () => set(!play);
      };
      box.append(picture, button);
      set(!matchMedia("(prefers-reduced-motion: reduce)").matches);
    }
    const race = document.getElementById("race");
    race?.querySelector("[data-again]").addEventListener("click", () => {
      for (const bar of all(".run, .ms", race)) {
        bar.style.animation = "none";
        void bar.offsetWidth;
        bar.style.animation = "";
      }
    });
  }

  // A tap, a click or Enter on a figure opens it alone, as large as it was drawn or as the window is.
  function enlarge() {
    const pictures = all("article img").filter((picture) => !picture.closest("a"));
    if (!pictures.length) return;
    const alone = make("dialog", { class: "enlarged", "aria-label": say("Enlarged figure") });
    const close = make("button", { type: "button" }, say("Close"));
    const large = make("img", { alt: "" });
    close.onclick = () => alone.close();
    alone.onclick = (event) => { if (event.target === alone) alone.close(); };
    alone.append(close);
    document.body.append(alone);
    for (const picture of pictures) {
      const shown = Number(picture.getAttribute("width"));
      const button = make("button", { type: "button", class: "enlarge", title: say("Enlarge"),
        "aria-haspopup": "dialog" });
      picture.replaceWith(button);
      button.append(picture);
      button.onclick = () => {
        const high = (innerHeight - 96) * shown / picture.getAttribute("height");
        const wide = Math.max(Math.min(document.documentElement.clientWidth - 48, high), 1.3 * shown);
        large.src = picture.src;
        large.alt = picture.alt;
        large.className = picture.className;
        large.width = Math.min(picture.naturalWidth || 2 * shown, wide);
        alone.append(large);
        alone.showModal();
        alone.scrollTo(0, 0);
      };
    }
  }

  // On a phone, where nothing can be run, the code of a figure folds: the picture stands under its text.
  function folded() {
    if (!matchMedia("(max-width: 46em)").matches) return;
    for (const code of all("div.cell > .cell_input:has(+ .cell_output img)")) {
      if (code.nextElementSibling.querySelector("pre")) continue;
      const fold = make("details", { class: "fold" });
      code.replaceWith(fold);
      fold.append(make("summary", {}, say("The code of this figure")), code);
    }
  }

  // What is wider than its place fades at the edge behind which there is more.
  function edges() {
    const places = all("article pre, div.math, .table-wrapper, div.output.wide");
    const look = (seen) => seen
      .map((place) => [place, place.scrollWidth - place.clientWidth - place.scrollLeft > 4])
      .forEach(([place, more]) => place.classList.toggle("more", more));
    const sized = new ResizeObserver((seen) => look(seen.map(({ target }) => target)));
    for (const place of places) {
      sized.observe(place);
      place.addEventListener("scroll", () => look([place]), { passive: true });
    }
    document.fonts.ready.then(() => look(places));
  }

  // Both languages have the same headings in the same order: the way to the other leads to the one that is read.
  function across() {
    const headings = all("article section > :is(h2, h3)");
    const asked = location.hash.match(/^#heading-(\d+)$/);
    if (asked && headings[asked[1]]) location.replace("#" + headings[asked[1]].parentElement.id);
    for (const link of all(".other-language")) {
      link.addEventListener("click", () => {
        const read = headings.filter((heading) => heading.getBoundingClientRect().top < innerHeight / 3).length - 1;
        link.hash = read < 0 ? "" : `heading-${read}`;
      });
    }
  }

  // Search: the index is a script, so that it also loads from a folder; it comes when it is first wanted.
  let dialog = null;
  function openSearch() {
    if (dialog) { dialog.begin(); return; }
    if (document.querySelector("script[data-search]")) return;
    const script = make("script", { "data-search": "", src: root + "_static/search.js" });
    script.addEventListener("load", () => { dialog = window.courseSearch(store); dialog.begin(); });
    document.head.append(script);
  }
  const header = document.querySelector(".header-right");
  const lens = document.querySelector(".course-search svg");
  if (header && lens) {                                     // on a phone the sidebar is a drawer
    const button = make("button", { type: "button", class: "search-icon", "data-search-open": "",
      "aria-label": say("Search") });
    button.append(lens.cloneNode(true));
    header.prepend(button);
  }
  for (const button of all("[data-search-open]")) button.addEventListener("click", openSearch);
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    const wanted = (event.key === "/" && !typing) || (event.key === "k" && (event.ctrlKey || event.metaKey));
    if (wanted) { event.preventDefault(); openSearch(); }
  });

  // On a phone the contents are a drawer, which a choice closes.
  document.querySelector(".toc-drawer")?.addEventListener("click", (event) => {
    if (event.target.closest("a")) document.getElementById("__toc").checked = false;
  });

  // What is found in the article's text is lit as `name`, for styles to say how; the page stays as it is.
  function light(name, expression, skipped) {
    const article = document.querySelector("article");
    if (!article || !window.Highlight || !CSS.highlights) return;
    const ranges = [];
    const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      for (const found of node.data.matchAll(expression)) {
        if (skipped && node.parentElement.closest(skipped)) break;
        const range = new Range();
        range.setStart(node, found.index);
        range.setEnd(node, found.index + found[0].length);
        ranges.push(range);
      }
    }
    CSS.highlights.set(name, new window.Highlight(...ranges));
  }

  // A searched word as an expression: a short one is found where a word begins, RoPE not in property.
  window.courseFind = (word) => (/^[\p{Script=Latin}\p{Script=Greek}].{0,3}$/u.test(word)
    ? "(?<![\\p{Script=Latin}\\p{Script=Greek}])" : /^\d.{0,3}$/.test(word) ? "(?<!\\d)" : "")
    + word.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");

  // Words that were searched for are marked on the page that is opened.
  function marks() {
    const words = (new URLSearchParams(location.search).get("find") || "").match(/\S+/g);
    if (words) light("found", RegExp(words.map(window.courseFind).join("|"), "giu"));
  }

  // The tensors have their hues in prose and code as in formulas: Q, Qi, dQ, QKᵀ. A chapter's other use of a
  // letter stays plain, and so do the O of a bound and an author's initial.
  function hues() {
    const facts = document.querySelector(".facts");
    for (const letter of facts ? "QKVSPO" : "") {
      if (facts.dataset.plain.includes(letter)) continue;
      const name = RegExp(`(?<![\\w.'’]|I/)d?${letter}(?:[ij]{1,2}|_[ij])?(?![\\w'’(]|\\. [A-Z]\\w+[,.])|`
        + `(?<![\\w.])${letter}(?=Kᵀ)|(?<=\\bQ)${letter}(?=ᵀ)`, "g");
      light("t" + letter, name, ".katex,[data-explorer],svg,a,button,h1,h2,h3,.output,.facts,form");
    }
  }

  // How tall an explorer is, in pixels, in a narrow place and in a wide one: room for it before it comes.
  const HEIGHTS = { walk: [1100, 840], softmax: [960, 550], blocks: [2120, 970], lab: [480, 330] };

  // The explorers' script comes when a reader comes near one of them; it mounts all that are there.
  function explorers() {
    const places = all("[data-explorer]");
    if (!places.length) return;
    const near = new IntersectionObserver((seen) => {
      if (!seen.some((place) => place.isIntersecting)) return;
      near.disconnect();
      const script = make("script", { src: root + "_static/explorer.js" });
      script.onload = script.onerror = () => { for (const place of places) place.style.minHeight = ""; };
      document.head.append(script);
    }, { rootMargin: "1500px" });
    for (const place of places) {
      place.style.minHeight = `${HEIGHTS[place.dataset.explorer][place.clientWidth < 680 ? 0 : 1]}px`;
      near.observe(place);
    }
  }

  // What an address names stays where it was reached while what stands above it still grows, until the reader moves.
  let kept = null;
  const keep = () => kept?.scrollIntoView({ behavior: "instant" });
  function arrive() {
    const named = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!named) return;
    const fold = named.closest("details:not([open])");
    kept = named;
    named.closest(".covered")?.querySelector(".cover button").click();
    if (fold) { fold.open = true; keep(); }
    setTimeout(() => { if (kept === named) kept = null; }, 20000);
  }
  function addresses() {
    for (const moved of ["wheel", "touchmove", "pointerdown", "keydown"]) {
      addEventListener(moved, () => { kept = null; }, { passive: true, capture: true });
    }
    addEventListener("hashchange", arrive);
    // A page that is shown again stands where it was left.
    if (performance.getEntriesByType("navigation")[0]?.type === "navigate") arrive();
    new ResizeObserver(keep).observe(document.querySelector("article"));
    addEventListener("load", keep);
    document.fonts.ready.then(keep);
  }

  // The switch between light and dark has its drawings from here, once for all pages (slim.switches).
  function switches() {
    document.querySelector("body > svg")?.insertAdjacentHTML("beforeend", window.COURSE_SWITCHES);
  }

  switches();
  folded();
  guesses();
  explorers();
  across();
  addresses();
  whereabouts();
  ticks();
  finished();
  tips();
  films();
  enlarge();
  edges();
  marks();
  hues();
})();
