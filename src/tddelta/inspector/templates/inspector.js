"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const steps = data.steps;

  // ---------------------------------------------------------------- numbers

  const bytes = (text) => {
    const letters = atob(text), found = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) found[i] = letters.charCodeAt(i);
    return found;
  };
  const array = (packed) => {
    const raw = bytes(packed.data).buffer;
    return { f4: () => new Float32Array(raw), f8: () => new Float64Array(raw), u1: () => new Uint8Array(raw) }[packed.type]();
  };
  const rewards = array(data.rewards);
  const terminated = array(data.terminated);
  const truncated = array(data.truncated);
  const lives = data.lives && array(data.lives);
  const critics = data.critics.map((critic) => ({
    ...critic,
    horizons: critic.horizons.map((horizon) => horizon ?? Infinity),
    scales: critic.gammas.length,
    w: array(critic.w),
    v: array(critic.v),
    came: array(critic.came),
    shown: critic.gammas.map(() => true),
  }));

  /** Four digits, as every number on this page is shown. */
  const text = (value) => {
    if (!Number.isFinite(value)) return "–";
    const size = Math.abs(value), short = size && (size < 1e-3 || size >= 1e6);
    return (short ? value.toExponential(3) : String(Number(value.toPrecision(4)))).replaceAll("-", "−");
  };
  const percent = (value) => (Number.isFinite(value) ? `${Math.round(100 * value)} %` : "–");
  const share = (critic, t, z) => {
    let total = 0;
    for (let i = 0; i < critic.scales; i++) total += Math.abs(critic.w[t * critic.scales + i]);
    return total ? Math.abs(critic.w[t * critic.scales + z]) / total : NaN;
  };

  // ---------------------------------------------------------------- colours

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const RAMPS = {
    light: [[38, 70, 160], [20, 125, 165], [30, 145, 95], [150, 140, 20], [215, 110, 25], [185, 40, 70]],
    dark: [[120, 150, 245], [85, 185, 230], [95, 210, 150], [215, 205, 95], [250, 165, 85], [250, 120, 140]],
  };
  const colour = (z, count) => {
    const ramp = dark.matches ? RAMPS.dark : RAMPS.light;
    const at = count > 1 ? (z / (count - 1)) * (ramp.length - 1) : ramp.length - 1;
    const low = Math.min(Math.floor(at), ramp.length - 2);
    const mixed = ramp[low].map((value, i) => Math.round(value + (ramp[low + 1][i] - value) * (at - low)));
    return `rgb(${mixed.join(" ")})`;
  };
  let theme = {};
  const readTheme = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ground", "ink", "soft", "line", "bad", "cut", "life", "good", "link"]) {
      theme[name] = style.getPropertyValue(`--${name}`).trim();
    }
    critics.forEach((critic, c) => critic.gammas.forEach((_, z) => {
      $(`swatch-${c}-${z}`).style.background = colour(z, critic.scales);
    }));
  };

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
    let low = 0, high = 0;
    if (kind === "rewards") {
      for (const reward of rewards) { low = Math.min(low, reward); high = Math.max(high, reward); }
      return range(low, high);
    }
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
      const name = Number.isFinite(horizon) ? text(horizon) : "∞", room = pen.measureText(name).width / 2 + 4;
      if (x(place(horizon)) - room < free) continue;
      pen.fillText(name, x(place(horizon)), height - BOTTOM + 5);
      free = x(place(horizon)) + room;
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

  let frames = null;
  const unpack = async () => {
    const packed = data.frames;
    if (!packed) return;
    const stream = new Blob([bytes(packed.data)]).stream().pipeThrough(new DecompressionStream("deflate"));
    const raw = await new Response(stream).arrayBuffer();
    const words = new Uint32Array(raw), each = packed.stride / 4;
    for (let i = each; i < words.length; i++) words[i] ^= words[i - each];
    const rgb = bytes(packed.palette), palette = new Uint32Array(256);
    for (let i = 0; 3 * i < rgb.length; i++) {
      palette[i] = (255 << 24) | (rgb[3 * i + 2] << 16) | (rgb[3 * i + 1] << 8) | rgb[3 * i];
    }
    const pen = $("screen").getContext("2d", { willReadFrequently: true }), picture = pen.createImageData(packed.width, packed.height);
    const pixels = new Uint32Array(picture.data.buffer);
    frames = { index: new Uint8Array(raw), palette, pen, picture, pixels, stride: packed.stride };
    drawFrame();
    document.documentElement.dataset.frames = "ready";
  };
  const drawFrame = () => {
    if (!frames) return;
    const start = cursor * frames.stride;
    for (let i = 0; i < frames.pixels.length; i++) frames.pixels[i] = frames.palette[frames.index[start + i]];
    frames.pen.putImageData(frames.picture, 0, 0);
  };

  // ---------------------------------------------------------------- the cursor

  let cursor = 0;
  const sentence = () => critics.map((critic) => {
    const at = cursor * critic.scales, top = critic.scales - 1;
    let most = 0;
    for (let z = 1; z <= top; z++) if (Math.abs(critic.w[at + z]) > Math.abs(critic.w[at + most])) most = z;
    const horizon = (z) => (Number.isFinite(critic.horizons[z]) ? `${text(critic.horizons[z])} steps` : "all that is left");
    const part = critic.scales > 1
      ? `; its largest part is W${most}, ${most ? `what ${horizon(most)} add to ${horizon(most - 1)}` : `the next ${horizon(0)}`} (${percent(share(critic, cursor, most))} of all parts)`
      : "";
    const name = critics.length > 1 ? `${critic.name}: ` : "";
    return `${name}V over ${horizon(top)} is ${text(critic.v[at + top])}${part}.`;
  }).join(" ");

  const show = () => {
    critics.forEach((critic, c) => {
      for (let z = 0; z < critic.scales; z++) {
        const at = cursor * critic.scales + z;
        $(`w-${c}-${z}`).textContent = text(critic.w[at]);
        $(`v-${c}-${z}`).textContent = text(critic.v[at]);
        $(`share-${c}-${z}`).textContent = percent(share(critic, cursor, z));
        $(`came-${c}-${z}`).textContent = text(critic.came[at]);
      }
    });
    $("step").textContent = cursor.toLocaleString("en");
    $("cursor").value = cursor;
    if (!playing) $("reading").textContent = `Step ${cursor.toLocaleString("en")}, reward ${text(rewards[cursor])}. ${sentence()}`;
    const inside = cursor >= view[0] && cursor <= view[1];
    $("line").hidden = !inside;
    if (inside) $("line").style.transform = `translateX(${xOf(cursor) - 1}px)`;
    drawHorizons();
    drawFrame();
  };

  const drawAll = () => {
    charts.forEach(drawChart);
    $("range").textContent = `steps ${Math.round(view[0]).toLocaleString("en")} – ${Math.round(view[1]).toLocaleString("en")}`;
    show();
  };

  const moveTo = (t) => {
    cursor = Math.min(Math.max(Math.round(t), 0), steps - 1);
    if (cursor < view[0] || cursor > view[1]) {
      const width = view[1] - view[0];
      const start = Math.min(Math.max(cursor - width / 10, 0), Math.max(steps - 1 - width, 0));
      view = [start, start + width];
      drawAll();
    } else show();
  };

  const zoom = (factor) => {
    const whole = Math.max(steps - 1, 1);
    const width = Math.min(Math.max((view[1] - view[0]) * factor, Math.min(20, whole)), whole);
    const start = Math.min(Math.max(cursor - width / 2, 0), whole - width);
    view = [start, start + width];
    drawAll();
  };

  // ---------------------------------------------------------------- playing

  let playing = false, began = 0, from = 0;
  const play = (on) => {
    playing = on && steps > 1;
    $("play").textContent = playing ? "❚❚ Pause" : "▶ Play";
    $("play").setAttribute("aria-pressed", playing);
    if (!playing) return show();
    if (cursor === steps - 1) moveTo(0);
    from = cursor;
    began = performance.now();
    requestAnimationFrame(advance);
  };
  const advance = (now) => {
    if (!playing) return;
    const t = from + Math.floor(((now - began) / 1000) * Number($("speed").value));
    if (t !== cursor && t >= 0) moveTo(t);
    if (cursor >= steps - 1) play(false);
    else requestAnimationFrame(advance);
  };
  const step = (t) => { if (playing) play(false); moveTo(t); };

  // ---------------------------------------------------------------- what a person does

  $("play").onclick = () => play(!playing);
  $("back").onclick = () => step(cursor - 1);
  $("on").onclick = () => step(cursor + 1);
  $("cursor").oninput = (event) => step(Number(event.target.value));
  $("speed").onchange = () => { from = cursor; began = performance.now(); };
  $("closer").onclick = () => zoom(0.5);
  $("wider").onclick = () => zoom(2);

  const toggle = (c, z, on) => {
    const box = $(`shown-${c}-${z}`);
    if (!box) return;
    box.checked = critics[c].shown[z] = on;
    box.closest("tr").classList.toggle("off", !on);
    charts.filter((chart) => chart.dataset.critic !== undefined).forEach(drawChart);
    drawHorizons();
  };
  for (const box of document.querySelectorAll("input[data-scale]")) {
    box.onchange = () => toggle(Number(box.dataset.critic), Number(box.dataset.scale), box.checked);
  }

  document.addEventListener("keydown", (event) => {
    const tag = event.target.tagName, type = event.target.type;
    if (event.ctrlKey || event.metaKey || event.altKey || tag === "SELECT") return;
    if ((event.key === " " && (tag === "BUTTON" || type === "checkbox"))) return;
    const far = event.shiftKey ? 10 : 1;
    const actions = {
      ArrowLeft: () => step(cursor - far), ArrowRight: () => step(cursor + far),
      Home: () => step(0), End: () => step(steps - 1), " ": () => play(!playing),
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "−": () => zoom(2),
    };
    if (/^[1-9]$/.test(event.key)) {
      const z = Number(event.key) - 1;
      critics.forEach((critic, c) => z < critic.scales && toggle(c, z, !critic.shown[z]));
    } else if (actions[event.key]) actions[event.key]();
    else return;
    event.preventDefault();
  });

  const area = $("charts"), tip = $("tip");
  const within = (event) => event.clientX - area.getBoundingClientRect().left - area.clientLeft;
  const hover = (event) => {
    const t = stepAt(within(event));
    $("hover").hidden = false;
    $("hover").style.transform = `translateX(${xOf(t)}px)`;
    const lines = [`step ${t.toLocaleString("en")}   reward ${text(rewards[t])}${lives ? `   lives ${lives[t]}` : ""}`];
    critics.forEach((critic) => {
      if (critics.length > 1) lines.push(critic.name);
      critic.horizons.forEach((horizon, z) => {
        if (!critic.shown[z]) return;
        const at = t * critic.scales + z, name = Number.isFinite(horizon) ? text(horizon) : "∞";
        lines.push(`h ${name}:  W ${text(critic.w[at])}   V ${text(critic.v[at])}`);
      });
    });
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const right = event.clientX + 16 + width < innerWidth;
    tip.style.left = `${Math.max(4, right ? event.clientX + 16 : event.clientX - 16 - width)}px`;
    tip.style.top = `${Math.min(Math.max(4, event.clientY - height / 2), innerHeight - height - 4)}px`;
  };
  area.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "touch") hover(event);
    if (event.buttons & 1) step(stepAt(within(event)));
  });
  area.addEventListener("pointerdown", (event) => {
    if (event.button === 0) step(stepAt(within(event)));
  });
  area.addEventListener("pointerleave", () => { $("hover").hidden = tip.hidden = true; });

  const quoted = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const csv = () => {
    const heads = ["step", "reward", "terminated", "truncated", ...(lives ? ["lives"] : [])];
    critics.forEach((critic) => {
      const end = critics.length > 1 ? ` ${critic.name}` : "";
      for (const kind of ["W", "V", "came"]) critic.gammas.forEach((gamma) => heads.push(quoted(`${kind}(${gamma})${end}`)));
    });
    const rows = [heads.join(",")];
    const plain = (value) => (Number.isFinite(value) ? String(value) : "");
    for (let t = 0; t < steps; t++) {
      const row = [t, plain(rewards[t]), terminated[t], truncated[t], ...(lives ? [lives[t]] : [])];
      for (const critic of critics) for (const kind of ["w", "v", "came"]) {
        for (let z = 0; z < critic.scales; z++) row.push(plain(critic[kind][t * critic.scales + z]));
      }
      rows.push(row.join(","));
    }
    return `${rows.join("\r\n")}\r\n`;
  };
  $("export").onclick = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    link.download = `${data.file}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  dark.addEventListener("change", () => { readTheme(); drawAll(); });
  let waiting = 0;
  new ResizeObserver(() => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(drawAll); }).observe(area);

  const asked = Number((location.hash.match(/^#step=(\d+)$/) || [])[1] ?? data.step);
  readTheme();
  cursor = Math.min(asked, steps - 1);
  drawAll();
  unpack().catch((error) => { // a browser without DecompressionStream, from before 2023
    document.querySelector(".screen figcaption").textContent = `The pictures cannot be unpacked here: ${error.message}.`;
  });
  document.documentElement.dataset.page = "ready";
})();
