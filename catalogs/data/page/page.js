"use strict";
(() => {
  const narrow = () => window.innerWidth < 640;
  const theme = () => {
    const css = getComputedStyle(document.documentElement);
    const ink = css.getPropertyValue("--ink").trim(), line = css.getPropertyValue("--line").trim();
    const soft = css.getPropertyValue("--soft").trim();
    const axis = { gridcolor: line, linecolor: soft, zerolinecolor: soft, tickcolor: soft, ticks: "", automargin: true, title: { standoff: 10 } };
    return { layout: {
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif", size: narrow() ? 11 : 13, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
      hoverlabel: { align: "left", font: { size: 12 } }, legend: { itemsizing: "constant" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink } } };
  };
  const config = { responsive: true, displayModeBar: false, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", topojsonURL: "" };
  const plots = [...document.querySelectorAll(".plot")].map((place) => {
    const drawn = JSON.parse(place.nextElementSibling.textContent);
    return { place, data: drawn.data, layout: drawn.layout || {} };
  });
  const draw = () => plots.forEach((p) => Plotly.react(p.place, p.data, { ...p.layout, template: theme() }, config));
  draw();
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", draw);
  window.addEventListener("afterprint", draw);
  document.body.dataset.drawn = "yes";
})();
