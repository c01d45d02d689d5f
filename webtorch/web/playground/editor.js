// A small editor for Python: a textarea, with the same text in colours below it.

const KEYWORDS = new Set(
  ("and as assert async await break class continue def del elif else except finally for from global if import in is lambda " +
    "nonlocal not or pass raise return try while with yield match case True False None self").split(" "),
);
// A comment, a string (three quotes may span lines, and may still be open), a number, or a name.
const TOKEN = /(#[^\n]*)|((?:\b[rRbBfFuU]{1,2})?(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))|(\b\d[\w.]*(?:e[+-]?\d+)?)|([A-Za-z_]\w*)/g;
const INDENT = "    ";

const escaped = (text) => text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);

/** Python text as HTML with classes: k keyword, s string, n number, c comment, d what is defined. */
export function coloured(text) {
  let out = "";
  let at = 0;
  let before = "";
  for (const match of text.matchAll(TOKEN)) {
    const [all, comment, string, number, name] = match;
    out += escaped(text.slice(at, match.index));
    at = match.index + all.length;
    const kind = comment ? "c" : string ? "s" : number ? "n" : KEYWORDS.has(name) ? "k" : before === "def" || before === "class" ? "d" : "";
    out += kind ? `<span class="${kind}">${escaped(all)}</span>` : escaped(all);
    before = name ?? "";
  }
  return out + escaped(text.slice(at));
}

export class Editor {
  constructor({ area, colours, lines, changed }) {
    Object.assign(this, { area, colours, lines, changed });
    this.wrong = 0;
    area.addEventListener("input", () => {
      this.wrong = 0;
      this.draw();
      this.changed(this.text);
    });
    area.addEventListener("scroll", () => this.follow());
    area.addEventListener("keydown", (event) => this.key(event));
  }

  get text() {
    return this.area.value;
  }

  set text(value) {
    this.area.value = value;
    this.wrong = 0;
    this.draw();
    this.area.setSelectionRange(0, 0);
    this.area.scrollTo(0, 0);
    this.follow();
  }

  /** Mark a line as the one with the error; 0 for none. */
  mark(line) {
    this.wrong = line;
    this.draw();
  }

  draw() {
    const rows = coloured(this.text).split("\n");
    this.colours.innerHTML = this.wrong ? withMark(this.text, this.wrong) : rows.join("\n") + "\n";
    this.lines.innerHTML = rows.map((_, i) => (i + 1 === this.wrong ? `<span class="wrong">${i + 1}</span>` : i + 1)).join("\n");
    this.follow();
  }

  follow() {
    this.colours.scrollTo(this.area.scrollLeft, this.area.scrollTop);
    this.lines.scrollTo(0, this.area.scrollTop);
  }

  /** Replace a range as typing does, so that undo knows of it. */
  put(start, end, text) {
    this.area.setSelectionRange(start, end);
    // The one way that keeps the undo history; where it is gone, the text is replaced without it.
    if (!document.execCommand("insertText", false, text)) {
      this.area.setRangeText(text, start, end, "end");
      this.area.dispatchEvent(new Event("input"));
    }
  }

  key(event) {
    const { area } = this;
    const { value, selectionStart: start, selectionEnd: end } = area;
    const line = value.lastIndexOf("\n", start - 1) + 1;
    if (event.key === "Escape") {
      // Tab then leaves the editor, as people who do not use a mouse need it to.
      this.leaving = true;
      return;
    }
    if (event.key === "Tab" && !this.leaving && !event.altKey && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      if (start === end && !event.shiftKey) this.put(start, end, INDENT.slice((start - line) % 4));
      else this.lineByLine((row) => (event.shiftKey ? row.replace(/^ {1,4}/, "") : row && INDENT + row));
    } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      const row = value.slice(line, start);
      const deeper = /:\s*(#.*)?$/.test(row) ? INDENT : "";
      this.put(start, end, "\n" + /^ */.exec(row)[0] + deeper);
      area.blur();
      area.focus();
    } else if (event.key === "Backspace" && start === end && start > line && !value.slice(line, start).trim()) {
      event.preventDefault();
      this.put(start - (((start - line - 1) % 4) + 1), end, "");
    } else if (event.key === "/" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      const rows = this.rows().text.split("\n").filter((row) => row.trim());
      const commented = rows.every((row) => row.trimStart().startsWith("#"));
      this.lineByLine((row) => (commented ? row.replace(/^(\s*)# ?/, "$1") : row.trim() ? row.replace(/^(\s*)/, "$1# ") : row));
    }
    this.leaving = false;
  }

  rows() {
    const { value, selectionStart: start, selectionEnd: end } = this.area;
    const from = value.lastIndexOf("\n", start - 1) + 1;
    const last = value.indexOf("\n", Math.max(from, end - (end > start ? 1 : 0)));
    const to = last < 0 ? value.length : last;
    return { from, to, text: value.slice(from, to) };
  }

  lineByLine(change) {
    const { from, to, text } = this.rows();
    const changed = text.split("\n").map(change).join("\n");
    this.put(from, to, changed);
    this.area.setSelectionRange(from, from + changed.length);
  }
}

function withMark(text, line) {
  // Colours of strings over several lines are lost on the marked line only.
  const rows = text.split("\n");
  const before = rows.slice(0, line - 1).join("\n");
  const after = rows.slice(line).join("\n");
  return `${coloured(before)}${line > 1 ? "\n" : ""}<mark>${coloured(rows[line - 1] ?? "") || " "}</mark>\n${coloured(after)}\n`;
}
