-- What came in last? The newest escalations that wait for a decision, with what went wrong and the start of the payload.
select
    escalation_id,
    route,
    group_id,
    cause,
    escalated_at,
    attempts,
    suggested_decision,
    reason,
    substr(error_text, 1, 200) as error,
    substr(payload, 1, 200) as payload
from escalated_messages
where status in ('open', 'refused', 'reopened')
order by escalated_at desc, escalation_id desc
limit 50
