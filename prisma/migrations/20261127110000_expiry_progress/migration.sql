-- Up to when all has been expired was first written in the date style of the database. If that was not ISO, the service could not
-- read it, and nothing expired: everything that is pending is checked once more.
UPDATE "retention_progress" SET "done_up_to" = '-infinity'
WHERE "task" = 'expire' AND "done_up_to" !~ '^(-?infinity$|[0-9]{4,}-)';
