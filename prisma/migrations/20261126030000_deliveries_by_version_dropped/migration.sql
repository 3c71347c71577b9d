-- In a migration of its own: claims that wait for the making of the other have read this table, and would be waited for here.
DROP INDEX "webhook_delivery_webhook_configuration_id_verification_id_idx";
