for (const player of document.querySelectorAll(".player")) {
  const frames = [...player.querySelectorAll("img")];
  const slider = player.querySelector("input");
  const label = player.querySelector("output");
  const button = player.querySelector("button");
  let timer = null;
  const show = (k) => {
    frames.forEach((frame, i) => { frame.hidden = i !== k; });
    slider.value = k;
    label.textContent = "step " + frames[k].dataset.step;
  };
  const stop = () => { clearInterval(timer); timer = null; button.textContent = "Play"; };
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  button.addEventListener("click", () => {
    if (timer) { stop(); return; }
    let k = Number(slider.value) === frames.length - 1 ? 0 : Number(slider.value);
    show(k);
    button.textContent = "Pause";
    timer = setInterval(() => { k += 1; show(k); if (k === frames.length - 1) stop(); }, 150);
  });
}
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
