# SPDX-License-Identifier: Apache-2.0
"""What a Kafka client does, as flows: generators that are sent responses and yield requests. No socket, clock, thread."""
