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
  const config = { responsive: false, displayModeBar: false, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", topojsonURL: "" };
  const plots = [...document.querySelectorAll(".plot")].map((place) => {
    const drawn = JSON.parse(place.nextElementSibling.textContent);
    const { data, layout = {} } = drawn;
    return { place, width: 0, data, layout, height: place.offsetHeight };
  });
  const draw = () => Promise.all(plots.map(async (p) => {
    p.width = p.place.clientWidth;
    const figure = { data: p.data, layout: p.layout };
    const { data, layout, further = 0 } = structuredClone(p.width < NARROW ? narrowed(figure) : figure);
    const height = Math.round(p.height > 300 ? p.height * factor : p.height) + further;
    p.place.style.height = `${height}px`;
    await Plotly.react(p.place, data, { ...layout, height, width: p.width || undefined, template: theme() }, config);
    await settle(Plotly, p.place);
  }));
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  const tall = (share) => () => { factor = share; draw(); };
  window.addEventListener("beforeprint", tall(0.8));  // two figures on a page of paper
  window.addEventListener("afterprint", tall(1));
  window.addEventListener("resize", () => plots.some((p) => p.width !== p.place.clientWidth) && draw());
  draw().then(() => { document.body.dataset.drawn = "yes"; });
})();
