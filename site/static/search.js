// The dialog of the search; search-index.js has, packed, all pages, anchors, chapters, headings and texts of sections.
window.courseSearch = (() => {
  "use strict";
  const { content_root: base, index = "_static/search-index.js" } = document.documentElement.dataset;
  const HAN = /\p{Script=Han}/u;
  const make = (tag, cls, text = "") => {
    const node = document.createElement(tag);
    if (cls) node.className = cls;
    node.textContent = text;
    return node;
  };

  // Base 85, as Python writes it: of five signs four bytes.
  const SIGNS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
  function bytes(text) {
    const value = Object.fromEntries([...SIGNS].map((sign, n) => [sign, n]));
    const found = new DataView(new ArrayBuffer(Math.ceil(text.length / 5) * 4));
    for (let at = 0; at < text.length; at += 5) {
      const five = [...text.slice(at, at + 5).padEnd(5, "~")];
      found.setUint32(at / 5 * 4, five.reduce((sum, sign) => sum * 85 + value[sign], 0));
    }
    return found.buffer.slice(0, Math.floor(text.length * 4 / 5));
  }

  // Chinese has no spaces: what no section holds as a whole is tried as pairs of characters.
  function pairs(word) {
    return word.split(/([^\p{Script=Han}]+)/u).flatMap((run) => {
      if (!HAN.test(run)) return run.length > 1 && /[\p{L}\p{N}]/u.test(run) ? [run] : [];
      const signs = [...run];
      return signs.length < 3 ? [run] : signs.slice(1).map((sign, n) => signs[n] + sign);
    });
  }

  // Of these alone only headings are told, and beside other words they do not count.
  const STOP = new Set(("an and are as at be been but by can does for from has have how if in into is it its of on only "
    + "or so than that the their then there these they this those to was we what when where which who why will with "
    + "would you your").split(" "));

  // One sign too many, too few or wrong, or two that changed places.
  function near(a, b) {
    let [from, x, y] = [0, a.length, b.length];
    while (from < x && a[from] === b[from]) from += 1;
    while (x > from && y > from && a[x - 1] === b[y - 1]) { x -= 1; y -= 1; }
    const [one, other] = [a.slice(from, x), b.slice(from, y)];
    return (one.length < 2 && other.length < 2) || (one.length === 2 && one === other[1] + other[0]);
  }

  // What rescale, rescales, rescaled and rescaling have in common.
  const stem = (word) => word.replace(/(?<=.{4})(e|es|ed|er|s|ing)$/, "");
  const any = (words, flags) => new RegExp(words.map(window.courseFind).join("|"), flags);
  const holds = (text, word) => any([word], "u").test(text);

  // At least `needed` of the words must be there. A heading counts more than text, and more yet if it is a word
  // of the glossary or a chapter's title.
  function score(words, [page, anchor, chapter, heading, text], low, needed = words.length) {
    let sum = 0;
    let missing = words.length - needed;
    const named = heading.toLowerCase();
    const whose = chapter.toLowerCase();
    const title = anchor ? page.endsWith("glossary.html") : !page.endsWith("index.html");
    for (const word of words) {
      const inHead = holds(named, stem(word));
      const count = (low.match(any([word], "gu")) || []).length;
      if (!inHead && !count) {
        missing -= 1;
        if (missing < 0) return 0;
        continue;
      }
      const whole = new RegExp("(^|[^\\p{L}\\p{N}])" + word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "u");
      sum += (inHead ? title ? 24 : 12 : 0) + (stem(named) === stem(word) ? 12 : 0) + (holds(whose, stem(word)) ? 6 : 0)
        + Math.min(count, 6) + (whole.test(low) ? 3 : 0)
        - Math.min(2, text.length / 4000);
    }
    return sum;
  }

  function excerpt(words, text, low) {
    const first = low.search(any(words, "u"));
    const at = first < 0 ? text.length : first;
    const space = text.lastIndexOf(" ", Math.max(0, at - 60)) + 1;
    const start = at === text.length ? 0 : HAN.test(text) ? Math.max(space, at - 80, 0) : space;
    return (start ? "… " : "") + text.slice(start, start + 190).trim() + (start + 190 < text.length ? " …" : "");
  }

  function marked(text, words) {
    const node = make("span");
    let from = 0;
    for (const { 0: part, index: at } of text.matchAll(any(words, "giu"))) {
      node.append(text.slice(from, at), make("mark", "", part));
      from = at + part.length;
    }
    node.append(text.slice(from));
    return node;
  }

  return () => {
    const say = window.courseWord;                          // course.js loads this script
    const dialog = make("dialog", "search");
    dialog.setAttribute("aria-label", say("Search the course"));
    const field = make("div", "field");
    const input = document.createElement("input");
    input.type = "text";
    input.autocomplete = "off";
    input.setAttribute("aria-label", say("Search the course"));
    input.placeholder = say("rescale, bank conflict, e4m3 …");
    const close = make("button", "", say("Close"));
    close.type = "button";
    const count = make("p", "count");
    count.setAttribute("role", "status");
    const list = make("ol");
    field.append(input, close);
    dialog.append(field, count, list);
    document.body.append(dialog);

    let sections = null;
    // The commonest word of the course that a mistyped one may stand for, or the word itself.
    function closest(word) {
      if (word.length < 4 || sections.some(({ low }) => low.includes(word))) return word;
      const found = {};
      for (const { low } of sections) {
        for (const other of low.match(/[\p{L}\p{N}]{4,}/gu) || []) {
          if (Math.abs(other.length - word.length) < 2 && near(word, other)) found[other] = (found[other] || 0) + 1;
        }
      }
      return Object.keys(found).sort((a, b) => found[b] - found[a])[0] || word;
    }
    function search() {
      let words = input.value.toLowerCase().split(/\s+/).filter((w) => w.length > 1 || HAN.test(w));
      list.replaceChildren();
      count.textContent = "";
      if (!words.length || !sections) return;
      const telling = words.filter((word) => !STOP.has(word));
      if (telling.length) words = telling;
      const places = (some, needed) => sections
        .map((s) => [score(some, s.entry, telling.length ? s.low : "", needed), s])
        .filter(([n]) => n > 0).sort((a, b) => b[0] - a[0]);
      let found = places(words);
      const meant = found.length || !telling.length ? [] : words.map(closest);
      if (!found.length && words.some((word) => HAN.test(word))) {
        words = words.flatMap(pairs);
        found = words.length ? places(words, Math.ceil(words.length * 0.6)) : [];
      } else if (!found.length && words.length > 2) found = places(words, words.length - 1);
      count.textContent = found.length === 1 ? say("1 place") : say("{n} places", { n: found.length });
      if (meant.some((word) => !words.includes(word)) && !words.some((word) => HAN.test(word))) {
        const button = make("button", "", say("Did you mean “{words}”?", { words: meant.join(" ") }));
        button.onclick = () => { input.value = meant.join(" "); input.focus(); search(); };
        count.append(" ", button);
      }
      const stems = words.map(stem);
      for (const [, { entry, low }] of found.slice(0, 30)) {
        const [page, anchor, chapter, heading, text] = entry;
        const link = document.createElement("a");
        const find = encodeURIComponent(words.join(" "));
        link.href = `${base}${page}?find=${find}${anchor ? "#" + anchor : ""}`;
        link.append(make("div", "where", chapter), make("div", "what"), make("div", "excerpt"));
        link.children[1].append(marked(heading, stems));
        link.lastChild.append(marked(excerpt(stems, text, low), stems));
        const item = document.createElement("li");
        item.append(link);
        list.append(item);
      }
    }
    input.addEventListener("input", search);
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
      const stops = [input, ...list.querySelectorAll("a")];
      const at = stops.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
      stops[Math.max(0, Math.min(stops.length - 1, at))].focus();
      event.preventDefault();
    });
    dialog.begin = () => {
      if (!dialog.open) dialog.showModal();
      input.select();
      if (sections) return;
      count.textContent = say("Reading the index …");
      const script = document.createElement("script");
      script.src = base + index;
      script.addEventListener("load", async () => {
        const stream = new Blob([bytes(window.COURSE_INDEX)]).stream().pipeThrough(new DecompressionStream("deflate"));
        const columns = await new Response(stream).json();
        sections = columns[0].map((_, n) => columns.map((column) => column[n]))
          .map((entry) => ({ entry, low: entry[4].toLowerCase() }));
        search();
      });
      document.head.append(script);
    };
    return dialog;
  };
})();
