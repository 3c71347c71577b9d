/** Full garbage collections of the load generator, at times that it chooses. */

import v8 from "node:v8";
import vm from "node:vm";

v8.setFlagsFromString("--expose-gc");

/**
 * Call before a round: within a round, a full collection takes 50 to 100 ms, which would be attributed to the measured program.
 */
export const collectGarbage: () => void = vm.runInNewContext("gc");
