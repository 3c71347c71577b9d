-- Hours that have had their time are found by these. A row keeps its hour, so only the first count of an hour touches them;
-- of the receptions the primary key does.
CREATE INDEX "number_statistics_hour_idx" ON "number_statistics" ("hour");
CREATE INDEX "carrier_statistics_hour_idx" ON "carrier_statistics" ("hour");
