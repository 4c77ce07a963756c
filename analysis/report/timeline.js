"use strict";
/* An interactive timeline: the wheel (after a click, or with Ctrl), dragging, buttons and keys zoom and move; clicking a
   host's name enlarges it; the pointer, or N and P, show its activities. */
class Timeline extends Lanes {
  /* --- zooming --------------------------------------------------------------------------------------------------- */

  show(from, to) {
    const whole = this.whole(), wide = Math.min(whole, Math.max(to - from, this.run.tick_ps * 20));
    const begin = Math.max(0, Math.min(whole - wide, from));
    this.view = [begin, begin + wide];
    this.item = null;
    look.quiet();
    this.draw();
  }

  zoom(by, at) {
    const middle = at === undefined ? (this.view[0] + this.view[1]) / 2 : at;
    this.show(middle - (middle - this.view[0]) * by, middle + (this.view[1] - middle) * by);
  }

  move(share) {
    const step = share * (this.view[1] - this.view[0]);
    this.show(this.view[0] + step, this.view[1] + step);
  }

  toggle(row) {
    if (!row || row.kind !== "host") return;
    if (this.large.has(row.host.name)) this.large.delete(row.host.name); else this.large.add(row.host.name);
    this.draw();
  }

  toggleAll() {
    const names = this.run.hosts.map((host) => host.name);
    if (names.every((name) => this.large.has(name))) this.large.clear(); else names.forEach((name) => this.large.add(name));
    this.draw();
  }

  listen() {
    const over = this.over;
    let from = null, moved = false;
    over.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== over) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / this.wide);
      else this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(event.offsetX));
    }, { passive: false });
    over.addEventListener("pointerdown", (event) => {
      from = { x: event.offsetX, view: this.view };
      moved = false;
      over.setPointerCapture(event.pointerId);
    });
    over.addEventListener("pointermove", (event) => {
      if (from === null) { this.hover(event); return; }
      if (Math.abs(event.offsetX - from.x) < 4 && !moved) return;
      moved = true;
      const step = (from.x - event.offsetX) * (from.view[1] - from.view[0]) / (this.wide - this.gutter);
      this.show(from.view[0] + step, from.view[1] + step);
    });
    over.addEventListener("pointerup", (event) => {
      if (from !== null && !moved && event.offsetX < this.gutter) this.toggle(this.rowAt(event.offsetY));
      from = null;
    });
    over.addEventListener("pointercancel", () => { from = null; });
    over.addEventListener("dblclick", (event) => {
      if (event.offsetX > this.gutter) this.zoom(0.25, this.time(event.offsetX));
    });
    over.addEventListener("pointerleave", () => { look.quiet(); this.outline(null); });
    over.addEventListener("blur", () => { look.quiet(); this.outline(null); });
    over.addEventListener("keydown", (event) => this.pressed(event));
  }

  pressed(event) {
    const acts = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), "0": () => this.show(0, this.whole()),
      Home: () => this.show(0, this.whole()), ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2),
      ArrowUp: () => this.choose(-1), ArrowDown: () => this.choose(1), Enter: () => this.toggle(this.rows[this.row]),
      n: () => this.step(1), p: () => this.step(-1), Escape: () => { look.quiet(); this.outline(null); },
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  choose(step) {
    this.row = (this.row + step + this.rows.length) % this.rows.length;
    this.item = null;
    this.draw();
    const row = this.rows[this.row], box = this.over.getBoundingClientRect();
    const words = row.kind === "host" ? `${row.host.name} ${row.host.role}\n${row.host.messages.begin.length} messages` :
      row.kind === "drops" ? `drops: ${row.cause.cause}\n${row.cause.total} packets, most at ${row.cause.most}` :
      `queue of ${row.queue.port}\npeak ${look.size(row.queue.peak)}`;
    look.tip(words, box.left + this.gutter, box.top + row.y);
  }

  /* The next activity of the chosen host in the view. */
  step(by) {
    const row = this.rows[this.row];
    if (!row || row.kind !== "host") return;
    const tick = this.run.tick_ps, things = [];
    row.host.spans.begin.forEach((begin, n) => things.push({ row, spans: n, begin }));
    row.host.messages.begin.forEach((begin, n) => things.push({ row, message: n, begin }));
    const seen = things.filter((each) => each.begin * tick >= this.view[0] && each.begin * tick <= this.view[1])
      .sort((a, b) => a.begin - b.begin);
    if (!seen.length) return;
    const now = this.item === null ? -1 : seen.findIndex((each) => each.spans === this.item.spans
      && each.message === this.item.message);
    this.item = seen[(now + by + seen.length) % seen.length];
    const box = this.over.getBoundingClientRect();
    this.outline(this.item);
    look.tip(this.words(this.item), box.left + this.x(this.item.begin * tick), box.top + row.at + row.high);
  }

  /* --- pointer --------------------------------------------------------------------------------------------------- */

  rowAt(y) { return this.rows.find((row, n) => y >= row.y - 3 && (n + 1 === this.rows.length || y < this.rows[n + 1].y - 3)); }

  hover(event) {
    const row = this.rowAt(event.offsetY);
    const item = row && event.offsetX > this.gutter ? this.under(row, this.time(event.offsetX), event.offsetY) : null;
    this.outline(item);
    this.over.style.cursor = event.offsetX < this.gutter && row && row.kind === "host" ? "pointer" : "grab";
    if (item) look.tip(this.words(item), event.clientX, event.clientY); else look.quiet();
  }

  under(row, time, y) {
    const tick = this.run.tick_ps, near = 3 * (this.view[1] - this.view[0]) / this.wide;
    if (row.kind === "drops") {
      const at = row.cause.at.findIndex((bin) => Math.abs((bin + 0.5) * this.run.drops.wide_ps - time) <= near + this.run.drops.wide_ps);
      return at < 0 ? null : { row, bin: at };
    }
    if (row.kind === "queue") {
      let last = -1;
      row.queue.at.forEach((at, n) => { if (at * tick <= time) last = n; });
      return last < 0 ? null : { row, sample: last };
    }
    const { spans, messages } = row.host;
    if (y < row.at) {
      const n = spans.begin.findIndex((begin, i) => begin * tick <= time && time <= (begin + spans.length[i]) * tick);
      return n < 0 ? null : { row, spans: n, begin: spans.begin[n] };
    }
    const each = row.high / Math.max(1, row.tracks), track = (y - row.at) / each;
    let best = null, nearest = Math.max(0.6, 4 / each);
    messages.begin.forEach((_, n) => {
      const [begin, end] = this.ends(messages, n);
      const far = Math.abs(messages.track[n] + 0.5 - track);
      if (begin * tick <= time + near && time <= end * tick + near && far < nearest) {
        best = { row, message: n, begin };
        nearest = far;
      }
    });
    return best;
  }

  title(messages, n) {
    const part = messages.part[n] ? ` [${messages.part[n]}]` : "";
    return `${this.run.kinds[messages.kind[n]]} ${this.run.texts[messages.what[n]]}${part}`;
  }

  words(item) {
    const tick = this.run.tick_ps, { row } = item;
    if (row.kind === "drops") {
      const at = row.cause.at[item.bin] * this.run.drops.wide_ps;
      return `${row.cause.count[item.bin]} packets dropped: ${row.cause.cause}\nat ${look.time(at)}; most of all at ${row.cause.most}`;
    }
    if (row.kind === "queue") {
      return `queue of ${row.queue.port}: ${look.size(row.queue.bytes[item.sample])}\nat ${look.time(row.queue.at[item.sample] * tick)}`;
    }
    if (item.spans !== undefined) {
      const { spans } = row.host, n = item.spans, more = this.run.texts[spans.more[n]];
      return `${row.host.name}: ${this.run.texts[spans.text[n]]}\n${look.time(spans.length[n] * tick)} from `
        + look.time(spans.begin[n] * tick) + (more ? "\nbecause of: " + more : "");
    }
    const { messages } = row.host, n = item.message, [begin, end] = this.ends(messages, n);
    const lines = [`${row.host.name}: ${this.title(messages, n)}`,
      `${look.size(messages.bytes[n])}, priority ${messages.class[n]}` + (messages.to[n] < 0 ? "" : `, to ${this.run.hosts[messages.to[n]].name}`),
      `ready at ${look.time(begin * tick)}, ` + (messages.sent[n] < 0 ? "not delivered" : `delivered after ${look.time((end - begin) * tick)}`)];
    if (messages.held[n] > 0) lines.push(`held back for ${look.time(messages.held[n] * tick)}`);
    if (messages.again[n] > 0) lines.push(`${messages.again[n]} retransmissions`);
    if (messages.timeouts[n] > 0) lines.push(`${messages.timeouts[n]} time-outs`);
    if (messages.lost[n] > 0) lines.push(`${look.size(messages.lost[n])} lost`);
    return lines.join("\n");
  }

  /* Frame an item; draw a line from a message to its arrival. */
  outline(item) {
    const pen = this.pen;
    pen.clearRect(0, 0, this.wide, this.high);
    if (!item || item.row.kind !== "host") return;
    const tick = this.run.tick_ps, { row } = item;
    pen.strokeStyle = this.colours.ink;
    pen.lineWidth = 1.5;
    if (item.spans !== undefined) {
      const begin = row.host.spans.begin[item.spans], x = this.x(begin * tick);
      pen.strokeRect(x, row.y, this.x((begin + row.host.spans.length[item.spans]) * tick) - x, 15);
      return;
    }
    const { messages } = row.host, n = item.message, [begin, end] = this.ends(messages, n);
    const each = row.high / Math.max(1, row.tracks), y = row.at + messages.track[n] * each, x = this.x(end * tick);
    pen.strokeRect(this.x(begin * tick), y, Math.max(2, x - this.x(begin * tick)), Math.max(2, each));
    const to = this.rows.find((other) => other.kind === "host" && messages.to[n] >= 0 && other.host === this.run.hosts[messages.to[n]]);
    if (!to || messages.sent[n] < 0) return;
    pen.beginPath();
    pen.moveTo(x, y + each / 2);
    pen.lineTo(x, to.y + 7);
    pen.stroke();
    pen.beginPath();
    pen.arc(x, to.y + 7, 3, 0, 7);
    pen.fillStyle = this.colours.ink;
    pen.fill();
  }
}
