/** Runs for each test file. */

import { afterAll } from "vitest";
import { endAll } from "./endings.ts";

afterAll(endAll);
