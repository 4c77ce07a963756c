"use strict";
/* Helpers of plots and timelines: colours, numbers, elements, tooltips. */
const look = {
  paper: false,
  /* Width of a figure: that of its container, or one readable on paper. */
  wide: (figure, least) => look.paper ? 720 : Math.max(least, figure.clientWidth),
  /* The current value of a colour variable, on the screen or on paper. */
  colour(name) {
    const from = look.paper ? document.querySelector(".paper") : document.documentElement;
    return getComputedStyle(from).getPropertyValue("--" + name).trim();
  },
  series: (n) => "c" + (n % 8),
  /* A number with three digits, four from a thousand on, or as requested. */
  number(value, digits = 3) {
    if (value === null || value === undefined) return "-";
    const size = Math.abs(value);
    for (const [scale, unit] of [[1e9, " G"], [1e6, " M"]]) {
      if (size >= scale && size < 1e12) return Number((value / scale).toPrecision(digits)) + unit;
    }
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2);
    return String(Number(value.toPrecision(size >= 1000 ? Math.max(4, digits) : digits)));
  },
  time(ps) {
    if (!ps) return "0";
    for (const [scale, unit] of [[1e12, "s"], [1e9, "ms"], [1e6, "us"], [1e3, "ns"]]) {
      if (Math.abs(ps) >= scale) return Number((ps / scale).toPrecision(4)) + " " + unit;
    }
    return Math.round(ps) + " ps";
  },
  size(bytes) {
    for (const [scale, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
      if (bytes >= scale) return Number((bytes / scale).toPrecision(3)) + " " + unit;
    }
    return bytes + " B";
  },
  make(name, given, parent) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(given || {})) {
      if (key === "text") made.textContent = value;
      else if (key === "style") made.style.cssText = value;  // the policy of the page forbids the attribute
      else made.setAttribute(key, value);
    }
    if (parent) parent.append(made);
    return made;
  },
  svg(name, given, parent) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(given || {})) {
      if (key === "text") made.textContent = value;
      else if (key === "style") made.style.cssText = value;  // the policy of the page forbids the attribute
      else made.setAttribute(key, value);
    }
    if (parent) parent.append(made);
    return made;
  },
  /* Show a tooltip, which screen readers announce too. */
  tip(words, x, y) {
    const tip = document.getElementById("tip");
    tip.textContent = words;
    tip.hidden = false;
    const wide = tip.offsetWidth, high = tip.offsetHeight;
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - wide - 8)) + "px";
    tip.style.top = (y + high + 24 > innerHeight ? Math.max(4, y - high - 10) : y + 14) + "px";
  },
  quiet() { document.getElementById("tip").hidden = true; },
  /* About `wanted` round values between two ends; on a logarithmic axis 1, 2, 5 of its decades. */
  ticks(low, high, wanted, log) {
    const found = [];
    if (log) {
      const decades = Math.log10(high / low);
      const steps = decades > 2.5 ? [1] : decades > 1 ? [1, 3] : [1, 2, 3, 5, 7];
      const skip = Math.max(1, Math.ceil(decades / wanted));
      for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1) {
        if (((e % skip) + skip) % skip) continue;
        for (const step of steps) {
          const value = step * 10 ** e;
          if (value >= low * 0.999999 && value <= high * 1.000001) found.push(value);
        }
      }
      if (found.length > 1) return found;
      found.length = 0;
    }
    const rough = (high - low) / Math.max(1, wanted) || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999) || rough;
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step);
    return found;
  },
  read: (figure) => JSON.parse(figure.querySelector("script").textContent),
};
