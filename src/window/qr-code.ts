import { correction, generate } from "lean-qr";
import { Html } from "./html.ts";

/** The width of the quiet zone that ISO/IEC 18004 requires, in modules. */
const quiet = 4;

/** A QR code as an inline image; dark on white in both colour schemes, since scanners need that. */
export function qrCode(text: string, label: string): Html {
  const code = generate(text, { minCorrectionLevel: correction.M });
  let dark = "";
  for (let y = 0; y < code.size; y++) {
    for (let x = 0; x < code.size; x++) {
      let length = 0;
      while (code.get(x + length, y)) length++;
      if (length > 0) dark += `M${x + quiet} ${y + quiet}h${length}v1h-${length}z`;
      x += length;
    }
  }
  const size = code.size + 2 * quiet;
  return new Html(
    `<svg class="qr" role="img" aria-label="${label}" viewBox="0 0 ${size} ${size}" shape-rendering="crispEdges">` +
      `<path fill="#fff" d="M0 0h${size}v${size}H0z"/><path fill="#000" d="${dark}"/></svg>`,
  );
}
