// ---------------------------------------------------------------- drawing

const LEFT = 58, RIGHT = 12, TOP = 6, BOTTOM = 20;
const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

const prepared = (canvas) => {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = FONT;
  pen.lineJoin = "round";
  return { pen, width, height };
};

const ticks = (low, high, count) => {
  const raw = (high - low) / count, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * size >= 0.7 * raw) * size;
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high * (1 + 1e-12) + 1e-300; i++) found.push(i * step);
  return found;
};

const range = (low, high) => {
  if (!(high > low)) return [low - 1, high + 1];
  const room = 0.04 * (high - low);
  return [low - (low < 0 ? room : 0), high + (high > 0 ? room : 0)];
};

const vertical = (pen, width, height, [low, high], count) => {
  const y = (value) => TOP + ((high - value) / (high - low)) * (height - TOP - BOTTOM);
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const tick of ticks(low, high, count)) {
    pen.strokeStyle = theme.line;
    pen.lineWidth = Math.abs(tick) < 1e-12 ? 1.5 : 0.75;
    pen.beginPath(); pen.moveTo(LEFT, y(tick)); pen.lineTo(width - RIGHT, y(tick)); pen.stroke();
    pen.fillStyle = theme.soft;
    pen.fillText(text(tick), LEFT - 6, y(tick));
  }
  return y;
};

let view = [0, Math.max(steps - 1, 1)];
const charts = [...document.querySelectorAll(".time")];
const across = () => charts[0].clientWidth - LEFT - RIGHT;
const xOf = (t) => LEFT + ((t - view[0]) / (view[1] - view[0])) * across();
const stepAt = (x) => {
  const t = Math.round(view[0] + ((x - LEFT) / across()) * (view[1] - view[0]));
  return Math.min(Math.max(t, 0), steps - 1);
};

const marks = (pen, height) => {
  const mark = (t, stroke, dash) => {
    if (t < view[0] || t > view[1]) return;
    pen.strokeStyle = stroke; pen.lineWidth = 1.5; pen.setLineDash(dash);
    pen.beginPath(); pen.moveTo(xOf(t), TOP); pen.lineTo(xOf(t), height - BOTTOM); pen.stroke();
    pen.setLineDash([]);
  };
  for (let t = 0; t < steps; t++) {
    const lifeNext = lives && lives[t + 1] < lives[t];
    if (terminated[t] && !lifeNext) mark(t, theme.bad, []);
    else if (truncated[t] && !lifeNext) mark(t, theme.cut, [5, 3]);
    if (lives && t > 0 && lives[t] < lives[t - 1]) mark(t, theme.life, [2, 3]);
  }
};

/** Ends of what is drawn over all steps and by all critics, so that it stays put and can be compared. */
const extent = (kind) => {
  const lowest = (a, b) => Math.min(a, b), highest = (a, b) => Math.max(a, b);
  if (kind === "rewards") return range(rewards.reduce(lowest, 0), rewards.reduce(highest, 0));
  let low = 0, high = 0;
  for (const critic of critics) for (let t = 0; t < steps; t++) {
    let up = 0, down = 0;
    for (let z = 0; z < critic.scales; z++) {
      if (!critic.shown[z]) continue;
      const value = (kind === "stack" ? critic.w : critic.v)[t * critic.scales + z];
      if (kind === "stack") { if (value > 0) up += value; else down += value; }
      else { up = Math.max(up, value); down = Math.min(down, value); }
    }
    low = Math.min(low, down); high = Math.max(high, up);
  }
  return range(low, high);
};

const drawChart = (canvas) => {
  const { pen, width, height } = prepared(canvas);
  const kind = canvas.dataset.kind, critic = critics[canvas.dataset.critic];
  pen.clearRect(0, 0, width, height);
  const y = vertical(pen, width, height, extent(kind), kind === "rewards" ? 2 : 4);
  pen.textAlign = "center"; pen.textBaseline = "top"; pen.fillStyle = theme.soft;
  for (const tick of ticks(view[0], view[1], Math.max(2, Math.floor(width / 110)))) {
    if (Number.isInteger(tick)) pen.fillText(tick.toLocaleString("en"), xOf(tick), height - BOTTOM + 5);
  }
  pen.save();
  pen.beginPath(); pen.rect(LEFT, 0, width - LEFT - RIGHT, height); pen.clip();
  const first = Math.max(0, Math.floor(view[0]) - 1), last = Math.min(steps - 1, Math.ceil(view[1]) + 1);
  if (kind === "stack") drawStack(pen, critic, y, first, last);
  else if (kind === "values") drawValues(pen, critic, y, first, last);
  else drawRewards(pen, y, first, last);
  marks(pen, height);
  pen.restore();
};

const drawStack = (pen, critic, y, first, last) => {
  const count = last - first + 1, up = new Float64Array(count), down = new Float64Array(count);
  for (let z = 0; z < critic.scales; z++) {
    if (!critic.shown[z]) continue;
    for (const [sums, sign] of [[up, 1], [down, -1]]) {
      pen.fillStyle = colour(z, critic.scales);
      pen.beginPath();
      for (let i = 0; i < count; i++) pen.lineTo(xOf(first + i), y(sums[i]));
      for (let i = count - 1; i >= 0; i--) {
        const value = critic.w[(first + i) * critic.scales + z];
        if (value * sign > 0) sums[i] += value;
        pen.lineTo(xOf(first + i), y(sums[i]));
      }
      pen.fill();
    }
  }
};

const drawValues = (pen, critic, y, first, last) => {
  for (let z = 0; z < critic.scales; z++) {
    if (!critic.shown[z]) continue;
    pen.strokeStyle = colour(z, critic.scales);
    pen.lineWidth = z === critic.scales - 1 ? 2.25 : 1.25;
    pen.beginPath();
    for (let t = first; t <= last; t++) pen.lineTo(xOf(t), y(critic.v[t * critic.scales + z]));
    pen.stroke();
  }
};

const drawRewards = (pen, y, first, last) => {
  for (let t = first; t <= last; t++) {
    if (!rewards[t]) continue;
    pen.strokeStyle = pen.fillStyle = rewards[t] > 0 ? theme.good : theme.bad;
    pen.lineWidth = 1.5;
    pen.beginPath(); pen.moveTo(xOf(t), y(0)); pen.lineTo(xOf(t), y(rewards[t])); pen.stroke();
    pen.beginPath(); pen.arc(xOf(t), y(rewards[t]), 2.25, 0, 7); pen.fill();
  }
};

// Horizons on a logarithmic axis; one that is infinite stands at twice the longest finite one.
const finite = critics.flatMap((critic) => critic.horizons.filter(Number.isFinite));
const beyond = 2 * Math.max(...finite, 1);
const place = (horizon) => Math.log(Number.isFinite(horizon) ? horizon : beyond);
const ends = critics.flatMap((critic) => critic.horizons.map(place));
const shortest = Math.min(...ends), longest = Math.max(...ends);

let pointed = null, atPoint = () => []; // where the pointer is in the panel, and what is there

const drawHorizons = () => {
  const canvas = $("horizons"), { pen, width, height } = prepared(canvas);
  pen.clearRect(0, 0, width, height);
  const curves = critics.map((critic) => critic.between.map(([horizon, weights]) => [
    Math.log(horizon),
    weights.reduce((sum, weight, z) => sum + weight * critic.v[cursor * critic.scales + z], 0),
  ]));
  const seen = curves.flat().map(([, value]) => value);
  for (const critic of critics) for (const values of [critic.v, critic.came]) {
    seen.push(...values.subarray(cursor * critic.scales, (cursor + 1) * critic.scales));
  }
  const known = seen.filter(Number.isFinite), low = Math.min(0, ...known), high = Math.max(0, ...known);
  const y = vertical(pen, width, height, range(low, high), 4);
  const span = longest - shortest;
  const x = (at) => LEFT + 8 + (span ? (at - shortest) / span : 0.5) * (width - LEFT - RIGHT - 16);
  pen.textAlign = "center"; pen.textBaseline = "top"; pen.fillStyle = theme.soft;
  let free = -Infinity;
  for (const horizon of [...new Set(critics.flatMap((critic) => critic.horizons))].sort((a, b) => place(a) - place(b))) {
    const name = named(horizon), room = pen.measureText(name).width / 2 + 4;
    if (x(place(horizon)) - room < free) continue;
    pen.fillText(name, x(place(horizon)), height - BOTTOM + 5);
    free = x(place(horizon)) + room;
  }
  /** Of every critic the trained horizon at the pointer, or else the nearest one of its curve. */
  atPoint = (across) => critics.map((critic, c) => {
    const start = cursor * critic.scales;
    const trained = critic.horizons.flatMap((horizon, z) => (critic.shown[z]
      ? [{ x: x(place(horizon)), horizon, v: critic.v[start + z], w: critic.w[start + z], came: critic.came[start + z] }]
      : []));
    const between = curves[c].map(([where, v]) => ({ x: x(where), horizon: Math.exp(where), v }));
    const nearest = (all) => all.reduce((best, one) => (Math.abs(one.x - across) < Math.abs(best.x - across) ? one : best), all[0]);
    const known = nearest(trained);
    return known && (Math.abs(known.x - across) < 8 || !between.length) ? known : nearest(between) ?? known;
  });
  const first = pointed !== null && atPoint(pointed).find(Boolean);
  if (first) {
    pen.strokeStyle = theme.soft; pen.lineWidth = 1; pen.setLineDash([2, 3]);
    pen.beginPath(); pen.moveTo(first.x, TOP); pen.lineTo(first.x, height - BOTTOM); pen.stroke();
    pen.setLineDash([]);
  }
  critics.forEach((critic, c) => {
    const at = (z) => critic.v[cursor * critic.scales + z];
    pen.strokeStyle = c ? theme.soft : theme.ink;
    pen.lineWidth = 1.5;
    pen.setLineDash(c ? [5, 4] : []);
    pen.beginPath();
    for (const [where, value] of curves[c]) pen.lineTo(x(where), y(value));
    pen.stroke();
    pen.setLineDash([]);
    critic.horizons.forEach((horizon, z) => {
      if (!critic.shown[z]) return;
      const here = x(place(horizon)), came = critic.came[cursor * critic.scales + z];
      pen.fillStyle = pen.strokeStyle = colour(z, critic.scales);
      pen.beginPath();
      if (c) pen.rect(here - 4, y(at(z)) - 4, 8, 8); else pen.arc(here, y(at(z)), 4.5, 0, 7);
      pen.fill();
      if (c || !Number.isFinite(came)) return;
      pen.lineWidth = 1.5;
      pen.beginPath(); pen.arc(here, y(came), 6.5, 0, 7); pen.stroke();
    });
  });
};

// ---------------------------------------------------------------- frames

let sheets = []; // pictures of many steps side by side
const loaded = (file) => new Promise((done, failed) => {
  const image = new Image();
  image.onload = () => done(image);
  image.onerror = failed;
  image.src = `data:image/png;base64,${file}`;
});
const loadFrames = async () => {
  if (!data.frames) return;
  sheets = await Promise.all(data.frames.sheets.map(loaded));
  drawFrame();
  document.documentElement.dataset.frames = "ready";
};
const drawFrame = () => {
  if (!sheets.length) return;
  const { width, height, columns } = data.frames, column = cursor % columns;
  const pen = $("screen").getContext("2d", { willReadFrequently: true });
  pen.drawImage(sheets[(cursor - column) / columns], column * width, 0, width, height, 0, 0, width, height);
};
