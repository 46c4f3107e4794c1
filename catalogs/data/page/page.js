"use strict";
(() => {
  const narrow = () => window.innerWidth < 640;
  let factor = 1;  // of the heights on the screen: less on paper
  const theme = () => {
    const css = getComputedStyle(document.documentElement);
    const ink = css.getPropertyValue("--ink").trim(), line = css.getPropertyValue("--line").trim();
    const soft = css.getPropertyValue("--soft").trim();
    const axis = { gridcolor: line, linecolor: soft, zerolinecolor: soft, tickcolor: soft, ticks: "", automargin: true, title: { standoff: 10, font: { size: narrow() || factor < 1 ? 11 : 13 } } };
    return { layout: {
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif", size: narrow() || factor < 1 ? 11 : 13, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
      hoverlabel: { align: "left", font: { size: 12 } }, legend: { itemsizing: "constant" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink } } };
  };
  const config = { responsive: true, displayModeBar: false, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", topojsonURL: "" };
  const plots = [...document.querySelectorAll(".plot")].map((place) => {
    const drawn = JSON.parse(place.nextElementSibling.textContent);
    return { place, data: drawn.data, layout: drawn.layout || {}, height: place.offsetHeight };
  });
  const draw = () => plots.forEach((p) => {
    const height = Math.round(p.height > 300 ? p.height * factor : p.height);
    p.place.style.height = `${height}px`;
    Plotly.react(p.place, p.data, { ...p.layout, height, template: theme() }, config);
  });
  draw();
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  const tall = (share) => () => { factor = share; draw(); };
  window.addEventListener("beforeprint", tall(0.8));  // two figures on a page of paper
  window.addEventListener("afterprint", tall(1));
  document.body.dataset.drawn = "yes";
})();
