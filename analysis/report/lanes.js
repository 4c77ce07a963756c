"use strict";
/* The part of a canvas context that lanes need, drawing into an SVG. Boxes of one colour are one path: a page may have
   ten thousand. */
class Pen {
  constructor(svg) {
    this.svg = svg;
    this.fillStyle = this.strokeStyle = "#000000";
    this.globalAlpha = 1;
    this.textAlign = "left";
    this.way = "";
    this.boxes = [];
    this.measure = document.createElement("canvas").getContext("2d");
    this.measure.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  }

  measureText(words) { return this.measure.measureText(words); }

  fillRect(x, y, wide, high) {
    const short = (value) => Number(value.toFixed(2));
    if (this.boxes.length && (this.fill !== this.fillStyle || this.alpha !== this.globalAlpha)) this.flush();
    [this.fill, this.alpha] = [this.fillStyle, this.globalAlpha];
    this.boxes.push(`M${short(x)} ${short(y)}h${short(wide)}v${short(high)}h${short(-wide)}z`);
  }

  /* Draw pending boxes before anything on top of them. */
  flush() {
    if (this.boxes.length) look.svg("path", { fill: this.fill, "fill-opacity": this.alpha, d: this.boxes.join("") }, this.svg);
    this.boxes = [];
  }

  fillText(words, x, y) {
    this.flush();
    const anchor = { left: "start", center: "middle", right: "end" }[this.textAlign];
    look.svg("text", { x, y: y + 4, "text-anchor": anchor, style: `fill:${this.fillStyle};font-size:11px`, text: words }, this.svg);
  }

  beginPath() { this.way = ""; }

  moveTo(x, y) { this.way += `M${x} ${y}`; }

  lineTo(x, y) { this.way += `L${x} ${y}`; }

  stroke() {
    this.flush();
    look.svg("path", { d: this.way, fill: "none", stroke: this.strokeStyle }, this.svg);
  }
}

/* Lanes on a canvas: per host computing above and messages below, then drops and queues. Moving and zooming is in
   timeline.js. */
class Lanes {
  constructor(figure) {
    this.figure = figure;
    this.runs = look.read(figure).runs.map((run) => Lanes.unpacked(run));
    this.run = this.runs[0];
    this.view = [0, this.whole()];
    this.large = new Set();
    this.unfolded = false;
    this.row = -1;
    this.item = null;
    this.by = "kind";
    this.buttons();
    const frame = look.make("div", { style: "position:relative" }, figure);
    this.canvas = look.make("canvas", { "aria-hidden": "true" }, frame);
    this.over = look.make("canvas", { tabindex: "0", role: "application", style: "position:absolute;inset:0",
      "aria-label": "timeline: plus and minus zoom, left and right move, 0 shows all, up and down choose a host, "
        + "N and P go through what it did, Enter makes it large" }, frame);
    this.notes = look.make("p", { class: "remark" }, figure);
    this.listen();
  }

  /* Decode columns: sum differences, convert ticks to picoseconds. */
  static unpacked(run) {
    const summed = (values) => { let sum = 0; return values.map((value) => (sum += value)); };
    for (const host of run.hosts) {
      host.spans.begin = summed(host.spans.begin);
      host.messages.begin = summed(host.messages.begin);
    }
    for (const queue of run.queues) queue.at = summed(queue.at);
    for (const cause of run.drops.causes) cause.at = summed(cause.at);
    return run;
  }

  whole() { return Math.max(...this.runs.map((run) => run.length * run.tick_ps)); }

  buttons() {
    const bar = look.make("div", { class: "bar", role: "group", "aria-label": "view" }, this.figure);
    this.chosen = this.runs.length < 2 ? [] : this.runs.map((run) => {
      const button = look.make("button", { type: "button", class: "run", text: run.name, style:
        `border-left:.4rem solid var(--${look.series(run.number)})` }, bar);
      button.addEventListener("click", () => { this.run = run; this.row = -1; this.draw(); });
      return button;
    });
    const tools = look.make("div", { class: "bar" }, this.figure);
    const tool = (text, label, act) => {
      const button = look.make("button", { type: "button", text, "aria-label": label, title: label }, tools);
      button.addEventListener("click", act);
    };
    tool("+", "zoom in", () => this.zoom(0.5));
    tool("−", "zoom out", () => this.zoom(2));
    tool("whole", "show all", () => this.show(0, this.whole()));
    const most = Math.max(...this.runs.map((run) => run.hosts.length));
    if (this.runs.some((run) => run.hosts.some((host) => host.folded))) {
      const all = look.make("button", { type: "button", class: "run", "aria-pressed": "false", text: `all ${most} hosts` }, tools);
      all.addEventListener("click", () => {
        this.unfolded = !this.unfolded;
        all.setAttribute("aria-pressed", String(this.unfolded));
        this.row = -1;
        this.draw();
      });
    }
    tool("all large", "make all hosts large, or small", () => this.toggleAll());
    const label = look.make("label", { text: "colour by " }, tools);
    const select = look.make("select", {}, label);
    for (const each of ["kind", "priority", "loss"]) look.make("option", { value: each, text: each }, select);
    select.addEventListener("change", () => { this.by = select.value; this.draw(); });
    look.make("span", { class: "hint", text: "click, then wheel or + and − zoom; drag moves; a host's name makes it large" },
      tools);
    this.keys = look.make("div", { class: "keys" }, this.figure);
  }

  /* --- layout ---------------------------------------------------------------------------------------------------- */

  layout() {
    this.wide = look.wide(this.figure, 280);
    this.gutter = Math.round(Math.min(170, this.wide * 0.22));
    this.rows = [];
    let y = 22;
    for (const host of this.run.hosts) {
      if (host.folded && !this.unfolded) continue;
      const spans = host.spans.begin.length ? 15 : 0, tracks = host.tracks;
      const high = !tracks ? 0 : this.large.has(host.name) ? Math.max(14, Math.min(900, tracks * 11)) : Math.min(34, 6 + 3 * tracks);
      this.rows.push({ kind: "host", host, y, spans, at: y + spans + (spans ? 2 : 0), high, tracks });
      y += spans + 2 + Math.max(high, spans ? 0 : 12) + 7;
    }
    for (const cause of this.run.drops.causes) { this.rows.push({ kind: "drops", cause, y, high: 26 }); y += 33; }
    for (const queue of this.run.queues) { this.rows.push({ kind: "queue", queue, y, high: 30 }); y += 37; }
    this.high = y + 18;
  }

  x(ps) { return this.gutter + (this.wide - this.gutter) * (ps - this.view[0]) / (this.view[1] - this.view[0]); }

  time(x) { return this.view[0] + (this.view[1] - this.view[0]) * (x - this.gutter) / (this.wide - this.gutter); }

  paint(canvas) {
    const sharp = Math.min(2, devicePixelRatio || 1, 15000 / this.high);
    canvas.width = Math.round(this.wide * sharp);
    canvas.height = Math.round(this.high * sharp);
    canvas.style.width = this.wide + "px";
    canvas.style.height = this.high + "px";
    const pen = canvas.getContext("2d");
    pen.scale(sharp, sharp);
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    pen.textBaseline = "middle";
    return pen;
  }

  /* Vector graphics for printing: browsers may print a canvas empty. */
  lines() {
    const whole = this.high < 1400 ? "max-height:18.5cm" : "";  // else it continues on the next page
    this.picture = look.svg("svg", { style: whole, viewBox: `0 0 ${this.wide} ${this.high}`, role: "img", "aria-label": "timeline" });
    this.canvas.before(this.picture);
    return new Pen(this.picture);
  }

  /* --- drawing --------------------------------------------------------------------------------------------------- */

  draw() {
    this.chosen.forEach((button, n) => button.setAttribute("aria-pressed", String(this.runs[n] === this.run)));
    this.layout();
    this.colours = {};
    for (const name of ["ground", "ink", "dim", "grey", "pale", "rule", "panel", "c0", "c1", "c2", "c3", "c4", "c5"]) {
      this.colours[name] = look.colour(name);
    }
    if (this.picture) { this.picture.remove(); this.picture = null; }
    const pen = look.paper ? this.lines() : this.paint(this.canvas);
    this.drawn = 0;
    this.axis(pen);
    this.rows.forEach((row) => { this.name(pen, row); this[row.kind](pen, row); });
    if (look.paper) pen.flush(); else this.pen = this.paint(this.over);
    this.say();
    this.figure.dataset.view = this.view.map(Math.round).join("-");
    this.figure.dataset.drawn = this.drawn;
    this.figure.dataset.run = this.run.name;
  }

  axis(pen) {
    const scale = look.ticks(this.view[0], this.view[1], (this.wide - this.gutter) / 110, false);
    pen.textAlign = "center";
    for (const value of scale) {
      const x = this.x(value);
      pen.fillStyle = this.colours.rule;
      pen.fillRect(x, 18, 1, this.high - 36);
      pen.fillStyle = this.colours.dim;
      const words = look.time(value);
      const at = Math.min(this.wide - pen.measureText(words).width / 2, Math.max(this.gutter, x));
      pen.fillText(words, at, 8);
      pen.fillText(words, at, this.high - 8);
    }
  }

  name(pen, row) {
    pen.textAlign = "left";
    pen.fillStyle = this.rows[this.row] === row ? this.colours.c0 : this.colours.ink;
    const cut = (words) => {
      let text = words;
      while (text.length > 3 && pen.measureText(text).width > this.gutter - 10) text = text.slice(0, -2) + "…";
      return text;
    };
    const words = row.kind === "host" ? row.host.name : row.kind === "drops" ? "drops: " + row.cause.cause : row.queue.port;
    pen.fillText(cut((row.kind === "queue" ? "queue " : "") + words), 2, row.y + 7);
    pen.fillStyle = this.colours.dim;
    const more = row.kind === "host" ? row.host.role : row.kind === "drops" ? row.cause.total + " packets" :
      "peak " + look.size(row.queue.peak);
    pen.fillText(cut(more), 2, row.y + 20);
  }

  spanColour(kind) { return this.colours[["c4", "c0", "c2", "grey", "pale"][kind]]; }

  messageColour(messages, n) {
    if (this.by === "priority") return Chart.cividis(messages.class[n] / this.most("class"));
    if (this.by === "loss") {
      return this.colours[messages.lost[n] > 0 ? "c3" : messages.timeouts[n] > 0 ? "ink" : messages.again[n] > 0 ? "c5" : "pale"];
    }
    return this.colours[["c2", "c1", "c2", "c1", "c3"][messages.kind[n]] || "c2"];
  }

  most(column) {
    let most = 1;
    for (const host of this.run.hosts) for (const value of host.messages[column]) if (value > most) most = value;
    return most;
  }

  box(pen, from, to, y, high) {
    const left = Math.max(this.gutter, this.x(from)), right = Math.min(this.wide, this.x(to));
    if (right < this.gutter || left > this.wide) return 0;
    pen.fillRect(left, y, Math.max(0.6, right - left), high);
    return right - left;
  }

  host(pen, row) {
    const { host } = row, tick = this.run.tick_ps, { spans, messages } = host;
    const limits = [this.view[0] / tick, this.view[1] / tick];
    for (let n = 0; n < spans.begin.length; n += 1) {
      if (spans.begin[n] + spans.length[n] < limits[0] || spans.begin[n] > limits[1]) continue;
      pen.fillStyle = this.spanColour(spans.kind[n]);
      const wide = this.box(pen, spans.begin[n] * tick, (spans.begin[n] + spans.length[n]) * tick, row.y, 15);
      this.drawn += 1;
      const words = this.run.texts[spans.text[n]];
      if (wide > 60 && pen.measureText(words).width < wide - 6) {
        pen.fillStyle = spans.kind[n] === 1 ? this.colours.ground : spans.kind[n] === 4 ? this.colours.ink : "#111111";
        pen.textAlign = "left";
        pen.fillText(words, Math.max(this.gutter, this.x(spans.begin[n] * tick)) + 3, row.y + 8);
      }
    }
    const each = row.high / Math.max(1, row.tracks), thick = Math.max(0.8, each - (each > 3 ? 1 : 0));
    for (let n = 0; n < messages.begin.length; n += 1) {
      const [begin, end] = this.ends(messages, n);
      if (end < limits[0] || begin > limits[1]) continue;
      const y = row.at + messages.track[n] * each;
      const released = messages.held[n] < 0 ? end : begin + messages.held[n];
      pen.fillStyle = this.messageColour(messages, n);
      pen.globalAlpha = 0.3;
      if (released > begin) this.box(pen, begin * tick, released * tick, y, thick);
      pen.globalAlpha = 1;
      const wide = released < end || messages.held[n] === 0 ? this.box(pen, released * tick, end * tick, y, thick) : 0;
      this.drawn += 1;
      if (wide > 90 && thick > 9) {
        pen.fillStyle = "#111111";
        pen.textAlign = "left";
        pen.fillText(this.title(messages, n).slice(0, Math.floor(wide / 6.2)),
          Math.max(this.gutter, this.x(released * tick)) + 3, y + thick / 2);
      }
    }
  }

  /* Ticks from ready to delivered, or to the end of the run. */
  ends(messages, n) {
    const begin = messages.begin[n], held = Math.max(0, messages.held[n]);
    return [begin, messages.sent[n] < 0 ? this.run.length : begin + held + messages.sent[n]];
  }

  drops(pen, row) {
    const wide = this.run.drops.wide_ps, columns = new Map();
    row.cause.at.forEach((at, n) => {
      const x = Math.floor(this.x((at + 0.5) * wide));
      if (x >= this.gutter && x < this.wide) columns.set(x, (columns.get(x) || 0) + row.cause.count[n]);
    });
    const most = Math.max(1, ...columns.values());
    pen.fillStyle = this.colours.c5;
    const bar = Math.max(1, Math.min(6, this.x(wide) - this.x(0)));
    for (const [x, count] of columns) pen.fillRect(x, row.y + row.high * (1 - count / most), bar, row.high * count / most);
    this.drawn += columns.size;
    this.base(pen, row);
  }

  queue(pen, row) {
    const { at, bytes, peak } = row.queue, tick = this.run.tick_ps;
    pen.beginPath();
    let high = 0, begun = false;
    at.forEach((time, n) => {
      const x = this.x(time * tick), y = row.y + row.high * (1 - bytes[n] / peak);
      if (x < this.gutter || x > this.wide) { high = y; return; }
      if (!begun) { pen.moveTo(x, high || row.y + row.high); begun = true; }
      pen.lineTo(x, y);
      this.drawn += 1;
    });
    pen.strokeStyle = this.colours.c0;
    pen.stroke();
    this.base(pen, row);
  }

  base(pen, row) {
    pen.fillStyle = this.colours.grey;
    pen.fillRect(this.gutter, row.y + row.high, this.wide - this.gutter, 1);
  }

  /* The legend, and notes on omissions. */
  say() {
    this.keys.replaceChildren();
    const key = (colour, words, pale) => {
      const each = look.make("span", { class: "kind" }, this.keys);
      look.make("span", { style: `display:inline-block;width:1.1em;height:.7em;margin:0 .35em 0 .5em;background:${colour};opacity:${pale || 1}` }, each);
      each.append(words);
    };
    const there = new Set(this.run.hosts.flatMap((host) => host.spans.kind));
    this.run.spans.forEach((words, n) => { if (there.has(n)) key(this.spanColour(n), words); });
    const kinds = new Set(this.run.hosts.flatMap((host) => host.messages.kind));
    if (this.by === "kind") {
      this.run.kinds.forEach((words, n) => {
        if (kinds.has(n)) key(this.colours[["c2", "c1", "c2", "c1", "c3"][n]], words + " messages");
      });
    } else if (this.by === "loss") {
      [["c3", "delivered with loss"], ["ink", "met a time-out"], ["c5", "sent again in part"], ["pale", "neither"]]
        .forEach(([colour, words]) => key(this.colours[colour], words));
    } else {
      key(Chart.cividis(0), "priority 0, served first");
      key(Chart.cividis(1), "priority " + this.most("class"));
    }
    key(this.colours.c2, "pale: held back at its host", 0.3);
    const name = look.paper && this.runs.length > 1 ? this.run.name + ": " : "";  // its button is not printed
    this.notes.textContent = name + [this.run.what, ...this.run.notes].join("; ") + ".";
  }
}
