-- Which of them carry a certain header? Put the header's name and the start of its value into the pattern below.
-- Headers are JSON: [["name", "type", "value"], ...]; the pattern finds a name and the beginning of its value.
select
    escalation_id,
    route,
    group_id,
    cause,
    status,
    message_key,
    headers
from escalated_messages
where headers like '%["message_id", "String", "%'
order by escalation_id
limit 50
