// The recording, and how its numbers and colours are shown.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const steps = data.steps;

// ---------------------------------------------------------------- numbers

const array = (packed) => {
  const letters = atob(packed.data), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return new { f4: Float32Array, f8: Float64Array, u1: Uint8Array }[packed.type](bytes.buffer);
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
const named = (horizon) => (Number.isFinite(horizon) ? text(horizon) : "∞");
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
