-- Who has waited longest? Escalations that wait for a decision, by the time of their first enqueue.
select
    first_enqueued_at,
    escalated_at,
    escalation_id,
    route,
    source,
    group_id,
    cause,
    reason
from escalated_messages
where status in ('open', 'refused', 'reopened')
order by coalesce(first_enqueued_at, escalated_at), escalation_id
limit 50
