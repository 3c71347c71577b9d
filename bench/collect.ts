/** Full collections of the generator's own memory, at times of its choice. */

import v8 from "node:v8";
import vm from "node:vm";

v8.setFlagsFromString("--expose-gc");

/** Before a round: within one it takes 50 to 100 ms, for which whoever is measured would be charged. */
export const collectGarbage: () => void = vm.runInNewContext("gc");
