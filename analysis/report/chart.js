"use strict";
/* Plots: bars, lines and maps as SVG, drawn for the available width. The pointer or the arrow keys show values; keys of
   the legend hide lines; dragging over a plot of lines zooms in. */
class Chart {
  constructor(figure) {
    this.figure = figure;
    this.data = look.read(figure);
    this.hidden = new Set();
    this.range = null;  // of x, while zoomed in
    this.at = -1;
    this.keys = look.make("div", { class: "keys" }, figure);
    this.svg = look.svg("svg", { tabindex: "0", role: "img", "aria-label":
      this.data.title + ": arrow keys name values, 0 shows all" }, figure);
    this.legend();
    this.svg.addEventListener("pointermove", (event) => this.moved(event));
    this.svg.addEventListener("pointerleave", () => { look.quiet(); this.ring(null); });
    this.svg.addEventListener("blur", () => { look.quiet(); this.ring(null); });
    this.svg.addEventListener("keydown", (event) => this.pressed(event));
    if (this.data.kind === "lines") this.closer();
  }

  legend() {
    const { kind, series, parts, colours } = this.data;
    const names = kind === "lines" ? series.map((each) => each.name) : kind === "bars" ? parts : [];
    if (names.length < 2 || (kind === "lines" && series.some((each) => each.labels.length))) return;
    names.forEach((name, n) => {
      const key = look.make("button", { type: "button", class: "key", "aria-pressed": "true" }, this.keys);
      const sample = look.svg("svg", { width: 26, height: 10, "aria-hidden": "true" }, key);
      if (kind === "bars") look.svg("rect", { width: 14, height: 10, x: 6, style: `fill:var(--${colours[n]})` }, sample);
      else this.stroke(series[n], this.number(n), "M0 5H26", sample);
      key.append(name);
      key.addEventListener("click", () => {
        if (this.hidden.has(n)) this.hidden.delete(n); else this.hidden.add(n);
        key.setAttribute("aria-pressed", String(!this.hidden.has(n)));
        this.draw();
      });
    });
  }

  draw() {
    this.wide = look.wide(this.figure, 260);
    this.spots = [];
    this.named = [];  // places of names of dots
    this.svg.replaceChildren();
    this[this.data.kind]();
    this.svg.setAttribute("viewBox", `0 0 ${this.wide} ${this.high}`);
    this.svg.style.height = this.high + "px";
    this.mark = look.svg("circle", { r: 6, fill: "none", "stroke-width": 2, style: "stroke:var(--ink)", visibility:
      "hidden" }, this.svg);
    this.figure.dataset.drawn = this.spots.length;
  }

  /* --- bars ------------------------------------------------------------------------------------------------------ */

  bars() {
    const { rows, parts, values, colours, unit } = this.data;
    const dots = this.hidden.size ? [] : this.data.dots;  // single values are sums of all parts
    const left = Math.min(this.wide * 0.34, 16 + 7.3 * Math.max(...rows.map((row) => row.length)));
    const each = dots.length ? 46 : 30, right = this.wide - 64, top = 4;
    this.high = top + rows.length * each + 40;
    const shown = values.map((row) => row.map((value, n) => (this.hidden.has(n) ? 0 : value)));
    const sums = shown.map((row) => row.reduce((sum, value) => sum + value, 0));
    const most = Math.max(...sums, ...dots.flat().map((dot) => dot[0]), 1e-12);
    const x = (value) => left + (right - left) * value / most;
    this.gridX(look.ticks(0, most, this.wide / 110, false), x, top, this.high - 36);
    this.svg.append(this.text(left + (right - left) / 2, this.high - 4, unit, "middle"));
    rows.forEach((row, place) => {
      const y = top + place * each + 4, thick = 20;
      this.wrapped(row, left - 12, y + 14, left - 12);
      if (this.data.runs.length) {
        look.svg("rect", { x: left - 7, y, width: 4, height: thick, style: `fill:var(--${look.series(this.data.runs[place])})` },
          this.svg);
      }
      let from = 0;
      shown[place].forEach((value, n) => {
        if (value > 0) {
          look.svg("rect", { x: x(from), y, width: Math.max(0.5, x(from + value) - x(from)), height: thick,
            style: `fill:var(--${colours[n]});stroke:var(--ground);stroke-width:.5` }, this.svg);
          const share = sums[place] ? ` (${look.number(100 * value / sums[place])} %)` : "";
          this.spot(x(from + value / 2), y + thick / 2, `${row}\n${parts[n]}: ${look.number(value)} ${unit}${share}`, n,
            [x(from), y, x(from + value), y + thick]);
          from += value;
        }
      });
      const label = this.text(x(sums[place]) + 6, y + 14, look.number(sums[place]), "start");
      label.setAttribute("class", "strong");
      this.svg.append(label);
      (dots[place] || []).forEach(([value, words, inside], n) => {
        const high = y + thick + 6 + 12 * (n / Math.max(1, dots[place].length - 1));
        look.svg("circle", { cx: x(value), cy: high, r: 2.4, style:
          `fill:${inside ? "var(--dim)" : "none"};stroke:var(--dim)` }, this.svg);
        this.spot(x(value), high, `${row}\n${words}: ${look.number(value)} ${unit}`, -1);
      });
    });
  }

  /* --- lines ----------------------------------------------------------------------------------------------------- */

  lines() {
    const { series, x, y, whiskers } = this.data;
    const shown = series.map((each, n) => (this.hidden.has(n) ? [] : this.inRange(each)));
    const all = shown.flat();
    const left = 62, right = this.wide - 16, top = 8, bottom = Math.round(Math.min(340, 170 + this.wide * 0.18));
    const labels = x.ticks.map((tick) => tick[1]);
    const turned = this.crowded(labels, (right - left) / labels.length);
    this.high = bottom + (turned ? 30 + 4.4 * Math.max(...labels.map((label) => label.length)) : 44);
    const [xs, ys] = [all.map((p) => p[0]), all.flatMap((p) => p.slice(1).filter((value) => value !== null))];
    const placeX = this.scale(x, xs, left, right, whiskers ? 0.5 : 0);
    const placeY = this.scale(y, ys, bottom, top, 0);
    this.left = left; this.right = right; this.top = top; this.bottom = bottom; this.back = placeX.back;
    const marks = x.ticks.length && !this.range ? x.ticks : placeX.ticks(this.wide / 90).map((at) => [at, null]);
    this.gridX(marks.map((mark) => mark[0]), placeX, top, bottom, marks.map((mark) => mark[1]), turned);
    for (const value of placeY.ticks(bottom / 55)) {
      look.svg("line", { class: "grid", x1: left, x2: right, y1: placeY(value), y2: placeY(value) }, this.svg);
      this.svg.append(this.text(left - 6, placeY(value) + 4, look.number(value, 6), "end"));
    }
    look.svg("path", { class: "axis", fill: "none", d: `M${left} ${top}V${bottom}H${right}` }, this.svg);
    this.svg.append(this.text((left + right) / 2, this.high - 4, x.label, "middle"));
    this.sideways(y.label, top, bottom);
    series.forEach((each, n) => this.line(each, this.number(n), shown[n], placeX, placeY));
  }

  inRange(each) {
    const log = [this.data.x.scale === "log", this.data.y.scale === "log"];
    return each.points.filter((p) => p[0] !== null && p[1] !== null && !(log[0] && p[0] <= 0) && !(log[1] && p[1] <= 0)
      && (!this.range || (p[0] >= this.range[0] && p[0] <= this.range[1])));
  }

  /* The number of a line's colour and dashes: that of its run in all plots. */
  number(n) { return this.data.series[n].colour >= 0 ? this.data.series[n].colour : n; }

  paint(each, n) { return each.grey ? "grey" : look.series(n); }

  line(each, n, points, x, y) {
    if (!points.length) return;
    const paint = this.paint(each, n);
    const band = points.filter((p) => p.length > 2 && p[2] !== null && p[3] !== null);
    const low = (p) => y(this.data.y.scale === "log" ? Math.max(p[2], p[1] / 1e3) : p[2]);
    if (band.length && this.data.whiskers) {
      const d = band.map((p) => `M${x(p[0])} ${low(p)}V${y(p[3])}`).join("");
      look.svg("path", { d, fill: "none", "stroke-width": 1.5, style: `stroke:var(--${paint})` }, this.svg);
    } else if (band.length > 1) {
      const d = "M" + band.map((p) => `${x(p[0])} ${y(p[3])}`).join("L") + "L"
        + band.slice().reverse().map((p) => `${x(p[0])} ${low(p)}`).join("L") + "Z";
      look.svg("path", { d, style: `fill:var(--${paint});opacity:.16` }, this.svg);
    }
    if (each.line) {
      let d = `M${x(points[0][0])} ${y(points[0][1])}`;
      for (let i = 1; i < points.length; i += 1) {
        const [px, py] = [x(points[i][0]), y(points[i][1])];
        d += each.step === "before" ? `V${py}H${px}` : each.step === "after" ? `H${px}V${py}` : `L${px} ${py}`;
      }
      this.stroke(each, n, d, this.svg);
    }
    points.forEach((p, i) => {
      if (each.dots) this.marker(n, x(p[0]), y(p[1]), paint).style.opacity = each.dim ? 0.45 : 1;
      if (each.labels[i]) this.beside(each.labels[i], x(p[0]), y(p[1]));
      const names = new Map(this.data.x.ticks);
      const at = names.get(p[0]) ?? look.number(p[0]);
      const spread = p.length > 2 && p[2] !== null ? ` (${look.number(p[2])} to ${look.number(p[3])})` : "";
      const note = each.note[i] ? "\n" + each.note[i] : "";
      this.spot(x(p[0]), y(p[1]),
        `${each.name}${note}\n${this.data.x.label || "at"}: ${at}\n${this.data.y.label}: ${look.number(p[1])}${spread}`, n);
    });
  }

  stroke(each, n, d, parent) {
    const paint = this.paint(each, n), dash = each.grey ? 0 : (each.dash >= 0 ? each.dash : n) % 7;
    if (!each.line) { parent.append(this.marker(n, 13, 5, paint)); return; }
    look.svg("path", { d, fill: "none", "stroke-width": each.grey ? 1 : 2,
      style: `stroke:var(--${paint});stroke-dasharray:var(--d${dash})` }, parent);
    if (each.dots && parent !== this.svg) parent.append(this.marker(n, 13, 5, paint));
  }

  /* The name of a dot, on the side that has room or else above it, below names that are there already. */
  beside(words, x, y) {
    const wide = 6.8 * words.length, right = x + 9, left = x - 9 - wide;
    const besides = right + wide < this.right || left > this.left;
    const from = right + wide < this.right ? right : besides ? left : Math.max(this.left + 4, this.right - wide);
    const taken = (at) => this.named.some((other) => Math.abs(other.at - at) < 11 && from < other.to && other.from < from + wide);
    let at = besides ? y + 4 : y - 9;
    while (taken(at)) at += 12;
    this.named.push({ at, from, to: from + wide });
    this.svg.append(this.text(from, at, words, "start"));
  }

  marker(n, x, y, paint) {
    const shapes = [[0, 16], [45, 4], [0, 3], [0, 4], [180, 3], [0, 5], [0, 6], [22.5, 8]];  // rotation, corners
    const [turn, corners] = shapes[n % shapes.length];
    const at = (i) => { const a = (turn + 360 * i / corners - 90) * Math.PI / 180;
      return `${x + 4 * Math.cos(a)} ${y + 4 * Math.sin(a)}`; };
    const d = "M" + Array.from({ length: corners }, (_, i) => at(i)).join("L") + "Z";
    return look.svg("path", { d, style: `fill:var(--${paint})` }, this.svg);
  }

  scale(axis, values, from, to, room) {
    let low = Math.min(...values), high = Math.max(...values);
    if (!values.length) [low, high] = axis.scale === "log" ? [1, 10] : [0, 1];
    const log = axis.scale === "log" && low > 0;
    if (this.range && axis === this.data.x) [low, high] = this.range;
    else if (!log && axis === this.data.y && low >= 0 && low < 0.6 * high) low = 0;
    if (low === high && low === 0 && axis === this.data.y) high = 1;
    if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) * 0.1 || 0.5), high + (Math.abs(high) * 0.1 || 0.5)];
    if (axis === this.data.y && !log) high += 0.04 * (high - low);
    const apart = this.data.series.some((each) => !each.line);  // dots keep clear of the frame
    const least = 0.05 * Math.abs(high);  // of dots: a few tenths of a percent look like what they are
    if (apart && !log && !room && !this.range && high - low < least) {
      [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
    }
    if (axis === this.data.x && !log && !room && apart) [low, high] = [low - 0.03 * (high - low), high + 0.03 * (high - low)];
    if (room) [low, high] = [low - room, high + room];
    const turn = log ? Math.log10 : (value) => value;
    const place = (value) => from + (to - from) * (turn(value) - turn(low)) / (turn(high) - turn(low));
    place.back = (pixel) => { const t = turn(low) + (turn(high) - turn(low)) * (pixel - from) / (to - from);
      return log ? 10 ** t : t; };
    place.ticks = (wanted) => look.ticks(low, high, wanted, log);
    return place;
  }

  /* Dragging zooms in; a double click, or 0, shows all. */
  closer() {
    let from = null, band = null;
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch") return;
      from = this.inside(event)[0];
      band = look.svg("rect", { y: this.top, height: this.bottom - this.top, width: 0, style:
        "fill:var(--focus);opacity:.18" }, this.svg);
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = Math.max(this.left, Math.min(this.right, this.inside(event)[0]));
      band.setAttribute("x", Math.min(from, to));
      band.setAttribute("width", Math.abs(to - from));
    });
    this.svg.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const to = Math.max(this.left, Math.min(this.right, this.inside(event)[0]));
      if (Math.abs(to - from) > 12) {
        this.range = [this.back(Math.min(from, to)), this.back(Math.max(from, to))];
      }
      from = null;
      this.draw();
    });
    this.svg.addEventListener("dblclick", () => { this.range = null; this.draw(); });
  }

  /* --- maps ------------------------------------------------------------------------------------------------------ */

  heat() {
    const { x, y, values, unit } = this.data;
    const left = Math.min(this.wide * 0.34, 36 + 6.8 * Math.max(...y.ticks.map((tick) => tick[1].length))), top = 24;
    const cell = Math.min(52, Math.max(22, 280 / y.ticks.length)), wide = (this.wide - left - 90) / x.ticks.length;
    const bottom = top + cell * y.ticks.length;
    const turned = this.crowded(x.ticks.map((tick) => tick[1]), wide);
    this.high = bottom + (turned ? 30 + 4.4 * Math.max(...x.ticks.map((tick) => tick[1].length)) : 44);
    const flat = values.flat().filter((value) => value !== null);
    const [low, high] = [Math.min(...flat), Math.max(...flat)];
    values.forEach((row, r) => row.forEach((value, c) => {
      if (value === null) return;
      const share = high > low ? (value - low) / (high - low) : 0.5;
      const at = { x: left + c * wide, y: bottom - (r + 1) * cell };
      look.svg("rect", { ...at, width: wide > 8 ? wide - 1 : wide + 0.4, height: cell - 1, fill: Chart.cividis(share) }, this.svg);
      const label = this.text(at.x + wide / 2, at.y + cell / 2 + 4, look.number(value), "middle");
      label.style.fill = share > 0.55 ? "#111" : "#fff";
      if (wide > 34) this.svg.append(label);
      this.spot(at.x + wide / 2, at.y + cell / 2,
        `${x.label}: ${x.ticks[c][1]}\n${y.label}: ${y.ticks[r][1]}\n${unit}: ${look.number(value)}`, -1,
        [at.x, at.y, at.x + wide, at.y + cell]);
    }));
    y.ticks.forEach((tick, r) => this.wrapped(tick[1], left - 6, bottom - (r + 0.5) * cell + 4, left - 26));
    this.gridX(x.ticks.map((tick) => tick[0]), (n) => left + (n + 0.5) * wide, bottom, bottom,
      x.ticks.map((tick) => tick[1]), turned);
    this.svg.append(this.text(left + wide * x.ticks.length / 2, this.high - 4, x.label, "middle"));
    this.sideways(y.label, top, bottom);
    const at = this.wide - 76;
    for (let n = 0; n < 20; n += 1) {
      look.svg("rect", { x: at, y: bottom - (n + 1) * (bottom - top) / 20, width: 12, height: (bottom - top) / 20 + 0.5,
        fill: Chart.cividis((n + 0.5) / 20) }, this.svg);
    }
    this.svg.append(this.text(at + 16, bottom, look.number(low), "start"),
      this.text(at + 16, top + 10, look.number(high), "start"));
    this.svg.append(this.fitted(this.text(this.wide - 4, 12, unit, "end"), this.wide));
  }

  /* From dark blue to yellow, distinct for every kind of colour vision (after Nunez et al. 2018). */
  static cividis(share) {
    const stops = [[0, 32, 76], [0, 67, 110], [87, 93, 109], [124, 123, 120], [165, 156, 116], [211, 193, 100], [255, 233, 69]];
    const at = share * (stops.length - 1), n = Math.min(stops.length - 2, Math.floor(at));
    return `rgb(${stops[n].map((c, i) => Math.round(c + (stops[n + 1][i] - c) * (at - n))).join(",")})`;
  }

  /* --- shared ---------------------------------------------------------------------------------------------------- */

  text(x, y, words, anchor) {
    return look.svg("text", { x, y, "text-anchor": anchor, text: words });
  }

  sideways(words, top, bottom) {
    const label = this.fitted(this.text(0, 0, words, "middle"), bottom - top);
    label.setAttribute("transform", `translate(13 ${(top + bottom) / 2}) rotate(-90)`);
    this.svg.append(label);
  }

  /* A text in smaller letters if it would be longer than its room. */
  fitted(label, room) {
    label.style.fontSize = Math.max(8, Math.min(12, room / (0.56 * label.textContent.length))) + "px";
    return label;
  }

  /* A right-aligned name, on two lines if needed. */
  wrapped(words, x, y, room) {
    const most = Math.max(6, Math.floor(room / 6.6));
    let lines = [words];
    if (words.length > most) {
      const cut = words.lastIndexOf(" ", most) > 0 ? words.lastIndexOf(" ", most) : most;
      const rest = words.slice(cut).trim();
      lines = [words.slice(0, cut), rest.length > most ? rest.slice(0, most - 1) + "…" : rest];
    }
    const text = look.svg("text", { "text-anchor": "end" }, this.svg);
    look.svg("title", { text: words }, text);
    lines.forEach((line, n) => look.svg("tspan", { x, y: y + (n - (lines.length - 1) / 2) * 13, text: line }, text));
  }

  /* True if labels at this distance in pixels would overlap. */
  crowded(labels, apart) {
    return labels.some((label, n) => n > 0 && ((labels[n - 1].length + label.length) / 2 + 2) * 6.6 > apart);
  }

  gridX(values, place, top, bottom, names, turned) {
    const apart = values.length > 1 ? Math.abs(place(values[1]) - place(values[0])) : Infinity;
    const every = turned ? Math.ceil(23 / apart) : 1;  // of too many labels some
    values.forEach((value, n) => {
      const x = place(value);
      if (bottom > top) look.svg("line", { class: "grid", x1: x, x2: x, y1: top, y2: bottom }, this.svg);
      if (n % every) return;
      const words = (names && names[n]) ?? look.number(value, 6);
      const label = this.text(x, bottom + 16, words, turned ? "end" : "middle");
      if (turned) label.setAttribute("transform", `rotate(-35 ${x} ${bottom + 12})`);
      this.svg.append(label);
    });
  }

  /* A target with a tooltip: a point, or a box. */
  spot(x, y, words, series, box) { this.spots.push({ x, y, words, series, box }); }

  inside(event) {
    const box = this.svg.getBoundingClientRect();
    return [(event.clientX - box.left) * this.wide / box.width, (event.clientY - box.top) * this.high / box.height];
  }

  moved(event) {
    const [x, y] = this.inside(event);
    let best = -1, near = 40 * 40;
    this.spots.forEach((spot, n) => {
      const [left, top, right, bottom] = spot.box || [1, 1, 0, 0];
      const within = x >= left && x <= right && y >= top && y <= bottom;
      const far = within ? 30 : (spot.x - x) ** 2 + (spot.y - y) ** 2;
      if (far < near) [best, near] = [n, far];
    });
    this.at = best;
    if (best < 0) { look.quiet(); this.ring(null); return; }
    this.ring(this.spots[best]);
    look.tip(this.spots[best].words, event.clientX, event.clientY);
  }

  pressed(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    if (event.key === "Escape") { look.quiet(); return; }
    if (event.key === "0") { this.range = null; this.draw(); return; }
    if (event.key in steps) this.at = (this.at + steps[event.key] + this.spots.length) % this.spots.length;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.other(event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
    const spot = this.spots[this.at], box = this.svg.getBoundingClientRect();
    if (!spot) return;
    this.ring(spot);
    look.tip(spot.words, box.left + spot.x * box.width / this.wide, box.top + spot.y * box.height / this.high);
  }

  /* The nearest value of the next line or bar. */
  other(step) {
    const now = this.spots[Math.max(0, this.at)];
    const kinds = [...new Set(this.spots.map((spot) => spot.series))];
    const wanted = kinds[(kinds.indexOf(now.series) + step + kinds.length) % kinds.length];
    let best = this.at, near = Infinity;
    this.spots.forEach((spot, n) => {
      if (spot.series === wanted && Math.abs(spot.x - now.x) < near) [best, near] = [n, Math.abs(spot.x - now.x)];
    });
    this.at = best;
  }

  ring(spot) {
    this.mark.setAttribute("visibility", spot ? "visible" : "hidden");
    if (spot) { this.mark.setAttribute("cx", spot.x); this.mark.setAttribute("cy", spot.y); }
  }
}
